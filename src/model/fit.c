/* SPDX-License-Identifier: Apache-2.0 */
/* Implements fit.h, which fits a model to measurements, for `penstock model --calibrate`. */
#include "fit.h"

#include <math.h>
#include <string.h>

#define STEPS 400
/* pst_fit_run starts several fits. In some, one parameter is divided or multiplied by
 * exp(START_RANGE), which is about 4. */
#define START_RANGE 1.4
#define CORNERS (PST_FIT_FREE + 1)

/* A corner of the simplex in the method of Nelder and Mead: the logarithms of the parameters that
 * the fit varies, and the error of the model with these parameters. */
struct corner {
	double x[PST_FIT_FREE], error;
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

/* Returns the mean of ln(predicted / measured)^2 over all measurements except number `without`. The
 * model predicts with parameters whose logarithms are in `x`. Returns infinity if the model rejects
 * the parameters. */
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

/* Writes the point a + t * (b - a), which is on the line through the points a and b, to `out`, with
 * the error of the model at this point. */
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

/* Makes one step of the minimisation by Nelder and Mead. Replaces the corner of the simplex that
 * has the largest error by a better point. If it finds none, moves the other corners halfway
 * to the best one. */
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

/* Moves the point `x` (logarithms of the free parameters) to a local minimum of the error. Returns
 * the error at the minimum. */
static double fit_from(struct pst_fit *f, double x[PST_FIT_FREE], int without)
{
	struct corner c[CORNERS];

	/* Where a parameter does not change the error, the simplex can shrink to a point that is no
	 * minimum. So the fit starts four times, each time with a new, smaller simplex around the
	 * best point so far. */
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
	/* The error has several local minima. For example, the bandwidth of a link changes no
	 * prediction as long as another link is slower. So the fit begins at several points: the
	 * given one, and points at which one parameter is smaller or larger. */
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
