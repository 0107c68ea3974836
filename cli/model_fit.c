/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements `penstock model --calibrate`. Fits the free parameters of a model to measurements,
 * and prints how much the fitted model differs from each of them. Also predicts each measurement
 * from a fit to all others: only the error of such a prediction tells how good predictions are.
 * The model `pipeline` describes one path of Penstock, so there is a separate fit for the
 * measurements of each path.
 */
#include "model_fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "contention.h"
#include "fit.h"
#include "json.h"

/* Initial values of parameters in a fit of the model `pipeline`. A hop is a device or link that the
 * bytes pass. The fit explains the measurements by one slow hop and a fixed time for each request.
 * The other hops get no latency and a bandwidth that no machine reaches, so that they do not limit
 * the result. */
static const struct pst_model_setting pipeline_base[] = {
	{"drive-us", 0}, {"copy-gbps", 1e6}, {"copy-us", 0}, {"dram-gbps", 1e6},
	{"dram-us", 0},	 {"pcie-gbps", 1e6}, {"pcie-us", 0}, {"hbm-gbps", 1e6},
	{"hbm-us", 0},	 {"home-us", 0},     {"wake-us", 0}, {"register-gbps", 1e6},
};

/* Further initial values, in addition to pipeline_base, if the measured reads came from the page
 * cache (paths "bounce" and "mapped"): no drive takes part, and requests overlap. */
static const struct pst_model_setting cache_base[] = {{"drive-gbps", 1e6}, {"request-us", 0}};

enum regime {
	ONE_HOP,  /* one slow device or link, such as a drive */
	COPIES,	  /* CPU copies: path "bounce", from the page cache */
	REGISTERS /* path "mapped" */
};

struct calibration {
	struct model_run *run;
	const struct model_measures *data;
	struct pst_fit fit;
	struct pst_fit_point points[MODEL_MEASURES];
	double fitted[MODEL_MEASURES], left_out[MODEL_MEASURES];
	double rms, worst, worst_left_out;
	const char *path; /* path of the measurements; "": unknown, or not model `pipeline` */
	enum regime regime;
};

static bool is_pipeline(const struct calibration *c)
{
	return !strcmp(c->run->model->name, "pipeline");
}

static void point_set(struct calibration *c, struct pst_fit_point *p, const char *name,
		      double value)
{
	p->param[p->set_count] = (unsigned)pst_model_param_index(c->run->model, name);
	p->value[p->set_count++] = value;
}

/* Returns the number by which the parameter `path` of the model names a path of Penstock. */
static double path_choice(const char *path)
{
	return !strcmp(path, "mapped")	 ? 3
	       : !strcmp(path, "bounce") ? 2
	       : !strcmp(path, "staged") ? 1
					 : 0;
}

/* Returns the share of the bytes that the measurement's main path did not carry. */
static double other_share(const struct model_measure *m)
{
	return m->bytes > 0 ? 1 - m->path_bytes / m->bytes : 0;
}

/* Returns which resources limit the measurements. On path "bounce", bytes that were not in the page
 * cache are written to host memory twice, and a drive limits their speed. */
static enum regime regime_of(const struct model_measures *data)
{
	const struct model_measure *m = &data->list[0];

	if (!strcmp(m->path, "mapped"))
		return REGISTERS;
	return !strcmp(m->path, "bounce") && m->dram_passes > 0 && m->dram_passes < 1.5 ? COPIES
											: ONE_HOP;
}

static int points_make(struct calibration *c)
{
	for (unsigned i = 0; i < c->data->count; i++) {
		const struct model_measure *m = &c->data->list[i];
		struct pst_fit_point *p = &c->points[i];

		p->measured = m->gbps;
		p->result = 0; /* throughput, the first result of pipeline and of contention */
		if (is_pipeline(c) && m->block >= 1) {
			point_set(c, p, "size", m->block);
			point_set(c, p, "depth", m->depth >= 1 ? m->depth : 1);
			point_set(c, p, "path", path_choice(m->path));
			if (c->regime == REGISTERS)
				point_set(c, p, "unregistered", other_share(m));
		} else if (!is_pipeline(c) && m->streams >= 1 && m->streams <= 64) {
			point_set(c, p, "streams", m->streams);
		} else {
			return fail(EXIT_FAILED, "measurement %u has no %s: choose another model",
				    i + 1,
				    is_pipeline(c) ? "length of its requests"
						   : "number of streams");
		}
	}
	return 0;
}

static int free_add(struct calibration *c, const char *name)
{
	int at = model_param_find(c->run->model, "--fit", name);

	if (at < 0)
		return EXIT_USAGE;
	if (c->fit.free_count == PST_FIT_FREE || c->run->model->params[at].choices ||
	    pst_model_is_whole(c->run->model->params[at].unit))
		return fail(EXIT_USAGE,
			    "--fit %s: give up to %u parameters that are no choice "
			    "and no whole number",
			    name, PST_FIT_FREE);
	c->fit.free[c->fit.free_count++] = (unsigned)at;
	return 0;
}

/* Returns the parameters to fit if the user names none. Each of them has an effect on at least one
 * measurement. If possible, there are fewer parameters than measurements. */
static const char *free_default(const struct calibration *c)
{
	unsigned count = c->data->count;
	bool shared = false, others = false;

	for (unsigned i = 0; i < count; i++) {
		int piece = pst_model_param_index(c->run->model, "piece");

		shared |= is_pipeline(c) && c->data->list[i].block > c->run->in[piece];
		others |= other_share(&c->data->list[i]) > 0;
	}
	if (!is_pipeline(c))
		return "gpu-gbps,memory-gbps";
	if (c->regime == COPIES)
		return shared && count > 4 ? "copy-gbps,home-us,wake-us,dram-gbps"
					   : "copy-gbps,home-us";
	if (c->regime == REGISTERS)
		return others && count > 1 ? "register-gbps,copy-gbps" : "register-gbps";
	return count < 4 ? "drive-gbps,request-us" : "drive-gbps,request-us,knee";
}

static int free_parse(struct calibration *c, const char *text)
{
	char name[64];

	if (!text)
		text = free_default(c);
	do {
		size_t len = strcspn(text, ",");
		int ret;

		snprintf(name, sizeof(name), "%.*s", (int)(len < 60 ? len : 60), text);
		ret = free_add(c, name);
		if (ret)
			return ret;
		text += len;
	} while (*text++ == ',');
	if (c->fit.free_count > c->data->count)
		return fail(EXIT_FAILED,
			    "%u measurements%s%s cannot tell %u parameters: measure more, "
			    "or choose fewer with --fit",
			    c->data->count, *c->path ? " of path " : "", c->path,
			    c->fit.free_count);
	return 0;
}

/* Returns a start value for the fixed time of a request, in us: the duration of a request in the
 * measurement with the shortest requests. From a much smaller start value, the fit would see no
 * effect of this parameter, because the time of the slowest hop (device or link) would hide it. */
static double request_time(const struct model_measures *data)
{
	const struct model_measure *least = &data->list[0];

	for (unsigned i = 1; i < data->count; i++)
		if (data->list[i].block < least->block)
			least = &data->list[i];
	return fmax(1, least->depth) * least->block / least->gbps * 1e-3;
}

static void settings_set(struct model_run *r, const struct pst_model_setting *set, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		int at = pst_model_param_index(r->model, set[i].name);

		if (!r->given[at])
			r->in[at] = set[i].value;
	}
}

/* Returns the value from which the fit of a free parameter starts. */
static double start_value(const struct calibration *c, const struct pst_model_param *p)
{
	double most = 0;

	for (unsigned i = 0; i < c->data->count; i++)
		most = fmax(most, c->data->list[i].gbps);
	if (!strcmp(p->name, "knee")) /* the default is the parameter's maximum, a poor start */
		return 3;
	if (!strcmp(p->name, "request-us"))
		return request_time(c->data);
	/* Path "bounce" reads or writes host memory four times for each byte. */
	if (!strcmp(p->name, "dram-gbps") && c->regime == COPIES)
		return 4 * most;
	if (!strcmp(p->unit, "GB/s") && strcmp(p->name, "copy-gbps"))
		return most;
	return p->value;
}

/* Sets the parameters before a fit: pipeline_base and cache_base, and a start value for each
 * parameter to fit. Parameters that the user has given keep their values, except duration-ms. */
static void base_set(struct calibration *c)
{
	struct model_run *r = c->run;

	if (is_pipeline(c))
		settings_set(r, pipeline_base, sizeof(pipeline_base) / sizeof(pipeline_base[0]));
	else /* duration 0 selects a formula instead of a slow simulation */
		r->in[pst_model_param_index(r->model, "duration-ms")] = 0;
	if (c->regime != ONE_HOP)
		settings_set(r, cache_base, sizeof(cache_base) / sizeof(cache_base[0]));
	for (unsigned i = 0; i < c->fit.free_count; i++)
		if (!r->given[c->fit.free[i]])
			r->in[c->fit.free[i]] = start_value(c, &r->model->params[c->fit.free[i]]);
}

static double error_of(double predicted, double measured)
{
	return predicted / measured - 1;
}

static void fit_all(struct calibration *c)
{
	double start[PST_MODEL_PARAMS];

	memcpy(c->fit.in, c->run->in, sizeof(c->fit.in));
	memcpy(start, c->run->in, sizeof(start));
	for (unsigned i = 0; i < c->data->count; i++) {
		memcpy(c->fit.in, start, sizeof(start));
		c->left_out[i] = NAN;
		if (c->data->count > c->fit.free_count) {
			pst_fit_run(&c->fit, (int)i);
			c->left_out[i] = pst_fit_predict(&c->fit, &c->points[i]);
		}
	}
	memcpy(c->fit.in, start, sizeof(start));
	c->rms = pst_fit_run(&c->fit, -1);
	memcpy(c->run->in, c->fit.in, sizeof(c->fit.in));
	c->worst = 0;
	c->worst_left_out = c->data->count > c->fit.free_count ? 0 : NAN;
	for (unsigned i = 0; i < c->data->count; i++) {
		c->fitted[i] = pst_fit_predict(&c->fit, &c->points[i]);
		c->worst = fmax(c->worst, fabs(error_of(c->fitted[i], c->points[i].measured)));
		if (!isnan(c->worst_left_out))
			c->worst_left_out =
				fmax(c->worst_left_out,
				     fabs(error_of(c->left_out[i], c->points[i].measured)));
	}
}

static void percent_print(double share)
{
	if (isnan(share))
		printf(" %9s", "-");
	else
		printf(" %+8.1f%%", share * 100);
}

static void fit_print_text(const struct calibration *c, bool after_another)
{
	const struct pst_model *m = c->run->model;

	if (after_another)
		fputc('\n', stdout);
	printf("%s%s%s fitted to %u measurements\n", m->name, *c->path ? " of path " : "", c->path,
	       c->data->count);
	for (unsigned i = 0; i < c->fit.free_count; i++)
		printf("  --%s %.6g   %s\n", m->params[c->fit.free[i]].name,
		       c->fit.in[c->fit.free[i]], m->params[c->fit.free[i]].about);
	printf("%12s %8s %12s %12s %9s %12s %9s\n", is_pipeline(c) ? "block" : "streams",
	       is_pipeline(c) ? "depth" : "", "measured", "fitted", "error", "left out", "error");
	for (unsigned i = 0; i < c->data->count; i++) {
		const struct pst_fit_point *p = &c->points[i];

		printf("%12.0f", p->value[0]);
		if (is_pipeline(c))
			printf(" %8.0f", p->value[1]);
		else
			printf(" %8s", "");
		printf(" %12.4g %12.4g", p->measured, c->fitted[i]);
		percent_print(error_of(c->fitted[i], p->measured));
		printf(" %12.4g", c->left_out[i]);
		percent_print(error_of(c->left_out[i], p->measured));
		fputc('\n', stdout);
	}
	printf("error of the fit: %.1f%% root mean square, %.1f%% at most\n", c->rms * 100,
	       c->worst * 100);
	if (!isnan(c->worst_left_out))
		printf("error of predictions from the other measurements: %.1f%% at most\n",
		       c->worst_left_out * 100);
}

static void fit_print_json(struct json *j, const struct calibration *c)
{
	const struct pst_model *m = c->run->model;

	json_object(j, NULL);
	json_text(j, "path", c->path);
	json_object(j, "fitted");
	for (unsigned i = 0; i < c->fit.free_count; i++)
		json_real(j, m->params[c->fit.free[i]].name, c->fit.in[c->fit.free[i]]);
	json_end(j);
	json_real(j, "rms_error", c->rms);
	json_real(j, "worst_error", c->worst);
	json_real(j, "worst_left_out_error", c->worst_left_out);
	json_array(j, "measurements");
	for (unsigned i = 0; i < c->data->count; i++) {
		const struct pst_fit_point *p = &c->points[i];

		json_object(j, NULL);
		for (unsigned k = 0; k < (is_pipeline(c) ? 2 : 1); k++)
			json_real(j, m->params[p->param[k]].name, p->value[k]);
		json_real(j, "measured", p->measured);
		json_real(j, "fitted", c->fitted[i]);
		json_real(j, "left_out", c->left_out[i]);
		json_end(j);
	}
	json_array_end(j);
	json_end(j);
}

/* Fits the model to the measurements `data`, which are of one path. */
static int path_fit(struct calibration *c, struct model_run *r, const struct model_measures *data,
		    const char *free_text)
{
	int ret;

	memset(c, 0, sizeof(*c));
	c->run = r;
	c->data = data;
	c->path = is_pipeline(c) ? data->list[0].path : "";
	c->regime = is_pipeline(c) ? regime_of(data) : ONE_HOP;
	c->fit.model = r->model;
	c->fit.points = c->points;
	c->fit.point_count = data->count;
	c->fit.space = r->space;
	r->space->rates_only = true; /* skips a slow search in each of many thousand runs */
	ret = free_parse(c, free_text);
	if (!ret)
		ret = points_make(c);
	if (ret)
		return ret;
	base_set(c);
	fit_all(c);
	return isnan(c->rms) ? fail(EXIT_FAILED, "no parameters suit the measurements") : 0;
}

/* Returns whether measurements a and b belong to one fit. */
static bool same_fit(const struct model_run *r, const struct model_measure *a,
		     const struct model_measure *b)
{
	return strcmp(r->model->name, "pipeline") != 0 || !strcmp(a->path, b->path);
}

/* Moves the first measurement, and all others of its path, from `from` to `to`. */
static void path_take(const struct model_run *r, struct model_measures *from,
		      struct model_measures *to)
{
	struct model_measure first = from->list[0];
	unsigned kept = 0;

	to->count = 0;
	for (unsigned i = 0; i < from->count; i++)
		if (same_fit(r, &first, &from->list[i]))
			to->list[to->count++] = from->list[i];
		else
			from->list[kept++] = from->list[i];
	from->count = kept;
}

/* The memory of model_calibrate, which is too large for a stack. */
struct calibrations {
	struct calibration one;
	struct model_measures rest, path;
	struct model_run run;
	double worst, worst_left_out;
	unsigned count;
};

static void worst_print(const struct calibrations *all)
{
	printf("\nall paths: error of the fits %.1f%% at most", all->worst * 100);
	if (!isnan(all->worst_left_out))
		printf(", of predictions from the other measurements %.1f%% at most",
		       all->worst_left_out * 100);
	fputc('\n', stdout);
}

int model_calibrate(const struct model_run *r, const struct model_measures *data,
		    const char *free_text, bool json)
{
	struct calibrations *all = calloc(1, sizeof(*all));
	struct json j;
	int ret = 0;

	if (!all)
		return fail(EXIT_FAILED, "out of memory");
	all->rest = *data;
	while (!ret && all->rest.count) {
		struct calibration *c = &all->one;

		path_take(r, &all->rest, &all->path);
		all->run = *r;
		ret = path_fit(c, &all->run, &all->path, free_text);
		if (ret)
			break;
		if (json && !all->count) {
			json_open(&j, stdout);
			json_text(&j, "model", r->model->name);
			json_array(&j, "fits");
		}
		if (json)
			fit_print_json(&j, c);
		else
			fit_print_text(c, all->count > 0);
		all->worst = fmax(all->worst, c->worst);
		/* If a path has too few measurements, none can be left out, and c->worst_left_out
		 * is NAN. The result for all paths then becomes NAN, too. */
		if (!(c->worst_left_out <= all->worst_left_out))
			all->worst_left_out = isnan(all->worst_left_out) ? NAN : c->worst_left_out;
		all->count++;
	}
	if (json && all->count) {
		json_array_end(&j);
		json_close(&j);
	} else if (!ret && all->count > 1) {
		worst_print(all);
	}
	free(all);
	return ret;
}
