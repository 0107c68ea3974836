/* SPDX-License-Identifier: Apache-2.0 */
/* Implements fit.h. Called by `penstock model --calibrate` and by tests. */
#include "fit.h"

#include <math.h>
#include <string.h>

#define STEPS 400
#define START_RANGE 1.4 /* logarithm of the factor between starts: 4 */
#define CORNERS (PST_FIT_FREE + 1)

struct corner {
	double x[PST_FIT_FREE], error; /* x: logarithms of the free parameters */
};

double pst_fit_predict(const struct pst_fit *f, const struct pst_fit_point *p)
{
	double in[PST_MODEL_PARAMS], out[PST_MODEL_RESULTS];

	memcpy(in, f->in, sizeof(in));
	for (unsigned i = 0; i < p->set_count; i++)
		in[p->param[i]] = p->value[i];
	return f->model->run(in, out, f->space) ? NAN : out[p->result];
}

static double clamp(const struct pst_model_param *p, double value)
{
	double least = p->min > 0 ? p->min : 1e-6;

	return fmin(p->max, fmax(least, value));
}

/* Returns the mean of the squared errors at the point `x`, or infinity if the model rejects the
 * parameters. An error is the logarithm of predicted over measured value. Leaves out measurement
 * number `without`. */
static double fit_error(struct pst_fit *f, const double *x, int without)
{
	unsigned count = 0;
	double sum = 0;

	for (unsigned i = 0; i < f->free_count; i++)
		f->in[f->free[i]] = clamp(&f->model->params[f->free[i]], exp(x[i]));
	for (unsigned i = 0; i < f->point_count; i++) {
		double e;

		if ((int)i == without)
			continue;
		e = log(pst_fit_predict(f, &f->points[i]) / f->points[i].measured);
		if (!isfinite(e))
			return INFINITY;
		sum += e * e;
		count++;
	}
	return count ? sum / count : INFINITY;
}

/* Writes the point a + t * (b - a) with its error to `out`. */
static void corner_between(struct pst_fit *f, const double *a, const double *b, double t,
			   struct corner *out, int without)
{
	for (unsigned i = 0; i < f->free_count; i++)
		out->x[i] = a[i] + t * (b[i] - a[i]);
	out->error = fit_error(f, out->x, without);
}

static void corners_sort(struct corner *c, unsigned count)
{
	for (unsigned i = 1; i < count; i++)
		for (unsigned k = i; k && c[k].error < c[k - 1].error; k--) {
			struct corner swap = c[k];

			c[k] = c[k - 1];
			c[k - 1] = swap;
		}
}

/* Makes one step of the method of Nelder and Mead: replaces the worst corner of the simplex, or
 * moves all other corners towards the best one. */
static void simplex_step(struct pst_fit *f, struct corner *c, int without)
{
	struct corner *worst = &c[f->free_count], reflected, other;
	double middle[PST_FIT_FREE] = {0};

	for (unsigned i = 0; i < f->free_count; i++)
		for (unsigned k = 0; k < f->free_count; k++)
			middle[i] += c[k].x[i] / f->free_count;
	corner_between(f, worst->x, middle, 2, &reflected, without);
	if (reflected.error < c[0].error) {
		corner_between(f, worst->x, middle, 3, &other, without);
		*worst = other.error < reflected.error ? other : reflected;
		return;
	}
	if (reflected.error < c[f->free_count - 1].error) {
		*worst = reflected;
		return;
	}
	corner_between(f, worst->x, middle, reflected.error < worst->error ? 1.5 : 0.5, &other,
		       without);
	if (other.error < fmin(worst->error, reflected.error)) {
		*worst = other;
		return;
	}
	for (unsigned i = 1; i <= f->free_count; i++) {
		double old[PST_FIT_FREE];

		memcpy(old, c[i].x, sizeof(old));
		corner_between(f, c[0].x, old, 0.5, &c[i], without);
	}
}

/* Moves the point `x` to a local minimum of the error, and returns the error there. */
static double fit_from(struct pst_fit *f, double x[PST_FIT_FREE], int without)
{
	struct corner c[CORNERS];

	/* If a parameter has no effect at the start, the simplex shrinks too early. So the fit
	 * starts again from its best point, each time with a smaller simplex. */
	for (unsigned round = 0; round < 4; round++) {
		for (unsigned i = 0; i <= f->free_count; i++) {
			memcpy(c[i].x, x, sizeof(c[i].x));
			if (i)
				c[i].x[i - 1] += round & 1 ? -0.7 / (round + 1) : 0.7 / (round + 1);
			c[i].error = fit_error(f, c[i].x, without);
		}
		for (unsigned step = 0; step < STEPS; step++) {
			corners_sort(c, f->free_count + 1);
			if (c[f->free_count].error - c[0].error < 1e-14)
				break;
			simplex_step(f, c, without);
		}
		corners_sort(c, f->free_count + 1);
		memcpy(x, c[0].x, sizeof(c[0].x));
	}
	return c[0].error;
}

double pst_fit_run(struct pst_fit *f, int without)
{
	double start[PST_FIT_FREE], best[PST_FIT_FREE], least = INFINITY;

	for (unsigned i = 0; i < f->free_count; i++)
		start[i] = log(clamp(&f->model->params[f->free[i]], f->in[f->free[i]]));
	memcpy(best, start, sizeof(best));
	/* The error has several local minima: a hop that limits no measurement has no effect. So
	 * the fit begins at several points, in which one parameter is smaller or larger. */
	for (unsigned k = 0; k <= 2 * f->free_count; k++) {
		double x[PST_FIT_FREE], error;

		memcpy(x, start, sizeof(x));
		if (k)
			x[(k - 1) / 2] += k & 1 ? -START_RANGE : START_RANGE;
		error = fit_from(f, x, without);
		if (error < least) {
			least = error;
			memcpy(best, x, sizeof(best));
		}
	}
	return isinf(least) ? NAN : sqrt(fit_error(f, best, without));
}
