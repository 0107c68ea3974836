/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Draws the results of a sweep as lines, in SVG. Used by `penstock model --plot`. A value that is
 * not defined leaves a gap. The text of the file depends only on the values.
 */
#include "model_plot.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "args.h"

#define WIDTH 860
#define HEIGHT 480
#define LEFT 90
#define RIGHT 30
#define TOP 60
#define BOTTOM 70

static const char *const colors[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7"};

struct axis {
	/* values at the ends of the axis; their logarithms (base 10) if `log` is set */
	double from, to;
	bool log;
};

static double axis_share(const struct axis *a, double value)
{
	return ((a->log ? log10(value) : value) - a->from) / (a->to - a->from);
}

/* Returns the smallest number that is at least `least` and 1, 2 or 5 times a power of ten. */
static double round_step(double least)
{
	double power = pow(10, floor(log10(least)));

	for (unsigned i = 0; i < 3; i++) {
		double step = (double[]){1, 2, 5}[i] * power;

		if (step >= least * (1 - 1e-9))
			return step;
	}
	return 10 * power;
}

static struct axis axis_make(double low, double high, bool log)
{
	struct axis a = {low, high, log};

	if (log) {
		a.from = log10(low);
		a.to = log10(high);
	}
	if (!(a.to > a.from)) {
		a.from -= 0.5;
		a.to = a.from + 1;
	}
	return a;
}

static double x_at(const struct axis *a, double value)
{
	return LEFT + axis_share(a, value) * (WIDTH - LEFT - RIGHT);
}

static double y_at(const struct axis *a, double value)
{
	return HEIGHT - BOTTOM - axis_share(a, value) * (HEIGHT - TOP - BOTTOM);
}

static void tick_print(FILE *f, bool vertical, double at, double value)
{
	char text[32];

	snprintf(text, sizeof(text), "%.4g", value);
	if (vertical)
		fprintf(f,
			"<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"#8884\"/>"
			"<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
			LEFT, at, WIDTH - RIGHT, at, LEFT - 8, at + 4, text);
	else
		fprintf(f,
			"<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"#8884\"/>"
			"<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
			at, TOP, at, HEIGHT - BOTTOM, at, HEIGHT - BOTTOM + 18, text);
}

static void axis_print(FILE *f, const struct axis *a, bool vertical)
{
	double step = a->log ? fmax(1, round_step((a->to - a->from) / 8))
			     : round_step((a->to - a->from) / 6);

	for (double t = ceil(a->from / step - 1e-9) * step; t <= a->to + 1e-9 * step; t += step) {
		double value = a->log ? pow(10, t) : fabs(t) < step * 1e-9 ? 0 : t;

		tick_print(f, vertical, vertical ? y_at(a, value) : x_at(a, value), value);
	}
}

/* Finds the smallest and largest value of all lines. */
static void range_find(const struct model_points *p, double *low, double *high)
{
	*low = INFINITY;
	*high = -INFINITY;
	for (unsigned i = 0; i < p->result_count; i++)
		for (unsigned k = 0; k < p->sweep.count; k++) {
			double value = p->outs[k][p->results[i]];

			if (!isfinite(value))
				continue;
			*low = fmin(*low, value);
			*high = fmax(*high, value);
		}
}

static void line_print(FILE *f, const struct model_run *r, const struct model_points *p,
		       const struct axis *x, const struct axis *y, unsigned i)
{
	const struct pst_model_result *result = &r->model->results[p->results[i]];
	bool pen = false;

	fprintf(f, "<path fill=\"none\" stroke=\"%s\" stroke-width=\"2\" d=\"", colors[i % 4]);
	for (unsigned k = 0; k < p->sweep.count; k++) {
		double value = p->outs[k][p->results[i]];

		if (!isfinite(value)) {
			pen = false;
			continue;
		}
		fprintf(f, "%s%.1f %.1f", pen ? "L" : "M",
			x_at(x, model_sweep_value(r->model, &p->sweep, k)), y_at(y, value));
		pen = true;
	}
	fprintf(f, "\"/>\n<text x=\"%d\" y=\"%d\" fill=\"%s\">%s%s%s</text>\n",
		LEFT + 190 * (int)(i % 4), TOP - 12, colors[i % 4], result->name,
		*result->unit ? ", " : "", result->unit);
}

static void svg_print(FILE *f, const struct model_run *r, const struct model_points *p)
{
	const struct pst_model_param *param = &r->model->params[p->sweep.param];
	double low, high;
	struct axis x = axis_make(fmin(p->sweep.from, p->sweep.to),
				  fmax(p->sweep.from, p->sweep.to), p->sweep.log);
	struct axis y;

	range_find(p, &low, &high);
	if (!(low <= high))
		low = high = 0;
	/* A value axis starts at zero unless it spans more than a factor of 100. */
	if (low > 0 && high / low > 100)
		y = axis_make(low, high, true);
	else
		y = axis_make(fmin(0, low), fmax(0, high), false);
	fprintf(f,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
		"font-family=\"sans-serif\" font-size=\"13\">\n"
		"<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n"
		"<text x=\"%d\" y=\"26\" font-size=\"16\">penstock model %s: %s</text>\n",
		WIDTH, HEIGHT, WIDTH, HEIGHT, LEFT, r->model->name, r->model->summary);
	axis_print(f, &x, false);
	axis_print(f, &y, true);
	for (unsigned i = 0; i < p->result_count; i++)
		line_print(f, r, p, &x, &y, i);
	fprintf(f, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s%s%s</text>\n</svg>\n",
		LEFT + (WIDTH - LEFT - RIGHT) / 2, HEIGHT - 24, param->name,
		*param->unit ? ", " : "", param->unit);
}

int model_plot(const char *path, const struct model_run *r, const struct model_points *p)
{
	FILE *f = fopen(path, "we");
	bool lost;

	if (!f)
		return fail(EXIT_FAILED, "%s: %s%s", path, strerror(errno), advice_errno(errno));
	svg_print(f, r, p);
	lost = ferror(f);
	if (fclose(f) || lost)
		return fail(EXIT_FAILED, "%s cannot be written: %s%s", path, strerror(errno),
			    advice_errno(errno));
	return EXIT_DONE;
}
