/* SPDX-License-Identifier: Apache-2.0 */
/* Implements credentials.h. No message contains a value that may be a secret. */
#include "s3/credentials.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "s3/ini.h"

/* The settings of one profile in one file. */
struct profile {
	bool found;
	char access_key[129], secret[257], token[4097];
	char region[65], endpoint[1025], ca_bundle[1025];
	char services[129];	/* setting `services`, which names a section [services NAME] */
	char s3_endpoint[1025]; /* endpoint_url of s3 in the section [services NAME] */
	/* name of the profile's setting that is in `foreign_settings`; "" if there is none */
	char foreign[33];
	/* whether `foreign` is role_arn, which takes precedence over keys */
	bool role;
};

/* The state while a file is read, which the callbacks of pst_ini_read share. */
struct reading {
	struct profile *profile;
	const char *name; /* name of the profile */
	/* whether the file is `config`, in which sections are called [profile NAME] */
	bool config;
	bool here; /* whether the current section belongs to the profile */
	const char *file;
	char *why;
	size_t why_len;
};

/* Settings with which AWS's tools get keys from a source that this library does not support. */
static const char *const foreign_settings[] = {
	"role_arn",	 "source_profile", "credential_source",	      "credential_process",
	"sso_start_url", "sso_session",	   "web_identity_token_file", "login_session",
};

/* Copies a value. Refuses one that is too long, or that has a control character, which could end a
 * line of an HTTP request. `what` and `where` name the value for the message. */
static int value_copy(const char *value, char *out, size_t size, const char *what,
		      const char *where, char *why, size_t why_len)
{
	size_t len = strlen(value);

	for (size_t i = 0; i < len; i++)
		if ((unsigned char)value[i] < ' ' || value[i] == 0x7f) {
			snprintf(why, why_len, "%s in %s contains a control character", what,
				 where);
			return -EINVAL;
		}
	if (len >= size) {
		snprintf(why, why_len, "%s in %s is longer than %zu characters", what, where,
			 size - 1);
		return -EINVAL;
	}
	memcpy(out, value, len + 1);
	return 0;
}

/* Copies the value of an environment variable, or "" if it is not set. */
static int variable_copy(const char *name, char *out, size_t size, char *why, size_t why_len)
{
	const char *value = getenv(name);

	return value_copy(value ? value : "", out, size, name, "the environment", why, why_len);
}

/* Returns whether the section's name is "PREFIX NAME", or "NAME" if `prefix` is empty. NAME may
 * have quotes. */
static bool section_is(const char *section, const char *prefix, const char *name)
{
	size_t len = strlen(prefix), name_len = strlen(name);
	char quote;

	if (len) {
		if (strncmp(section, prefix, len) || !strchr(" \t", section[len]) || !section[len])
			return false;
		section += len + strspn(section + len, " \t");
	}
	quote = *section;
	if (quote != '"' && quote != '\'')
		return !strcmp(section, name);
	section++;
	return !strncmp(section, name, name_len) && section[name_len] == quote &&
	       !section[name_len + 1];
}

/* Finds out whether a section belongs to the profile. In the file `config`, its name is
 * [profile NAME], and only "default" needs no "profile". In `credentials`, it is [NAME]. */
static int profile_section(void *user, const char *name)
{
	struct reading *r = user;

	r->here = !r->config || !strcmp(r->name, "default") ? section_is(name, "", r->name) : false;
	if (r->config && section_is(name, "profile", r->name))
		r->here = true;
	r->profile->found |= r->here;
	return 0;
}

static int profile_put(void *user, const struct pst_ini_setting *setting)
{
	struct reading *r = user;
	struct profile *p = r->profile;
	const struct {
		const char *name;
		char *to;
		size_t size;
	} known[] = {
		{"aws_access_key_id", p->access_key, sizeof(p->access_key)},
		{"aws_secret_access_key", p->secret, sizeof(p->secret)},
		{"aws_session_token", p->token, sizeof(p->token)},
		{"region", p->region, sizeof(p->region)},
		{"endpoint_url", p->endpoint, sizeof(p->endpoint)},
		{"ca_bundle", p->ca_bundle, sizeof(p->ca_bundle)},
		{"services", p->services, sizeof(p->services)},
	};
	const char *name = setting->name;

	if (!r->here || *setting->parent)
		return 0;
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (!strcmp(name, known[i].name))
			return value_copy(setting->value, known[i].to, known[i].size, name, r->file,
					  r->why, r->why_len);
	for (size_t i = 0; i < sizeof(foreign_settings) / sizeof(foreign_settings[0]); i++)
		if (!strcmp(name, foreign_settings[i]) && !p->role) {
			snprintf(p->foreign, sizeof(p->foreign), "%s", name);
			p->role = !strcmp(name, "role_arn");
		}
	return 0;
}

static int services_section(void *user, const char *name)
{
	struct reading *r = user;

	r->here = section_is(name, "services", r->profile->services);
	return 0;
}

static int services_put(void *user, const struct pst_ini_setting *setting)
{
	struct reading *r = user;

	if (!r->here || strcmp(setting->parent, "s3") || strcmp(setting->name, "endpoint_url"))
		return 0;
	return value_copy(setting->value, r->profile->s3_endpoint, sizeof(r->profile->s3_endpoint),
			  "endpoint_url of s3", r->file, r->why, r->why_len);
}

/* The bytes of a file, with a NUL at their end. */
struct bytes {
	char *at; /* NULL if there is no file */
	size_t len;
};

/* Overwrites and frees the bytes, which may contain a secret. */
static void bytes_free(struct bytes *bytes)
{
	if (bytes->at)
		explicit_bzero(bytes->at, bytes->len + 1);
	free(bytes->at);
}

/* Copies the bytes, because pst_ini_read changes them. */
static int bytes_copy(const struct bytes *from, struct bytes *out, char *why, size_t why_len)
{
	out->len = from->len;
	out->at = malloc(from->len + 1);
	if (!out->at) {
		snprintf(why, why_len, "no memory for the settings");
		return -ENOMEM;
	}
	memcpy(out->at, from->at, from->len + 1);
	return 0;
}

/* Reads a whole file. out->at is NULL if the file does not exist. The caller frees the bytes by
 * bytes_free, also after an error. */
static int file_read(const char *file, struct bytes *out, char *why, size_t why_len)
{
	int fd = open(file, O_RDONLY | O_CLOEXEC), rc = 0;
	struct stat st;
	ssize_t n = 1;

	*out = (struct bytes){NULL, 0};
	/* Without permission to search a folder, the file counts as missing, because $HOME may
	 * belong to another user. */
	if (fd < 0 && (errno == ENOENT || errno == ENOTDIR || (errno == EACCES && stat(file, &st))))
		return 0;
	out->at = fd < 0 ? NULL : malloc(PST_INI_MAX + 2);
	while (out->at && n > 0 && out->len <= PST_INI_MAX) {
		n = read(fd, out->at + out->len, PST_INI_MAX + 1 - out->len);
		out->len += n > 0 ? (size_t)n : 0;
	}
	if (out->at)
		out->at[out->len] = '\0';
	if (fd < 0 || !out->at || n < 0) {
		rc = -errno;
		snprintf(why, why_len, "cannot read %s: %m", file);
	} else if (out->len > PST_INI_MAX) {
		rc = -EFBIG;
		snprintf(why, why_len, "%s is longer than 1 MiB, so it is no file of settings",
			 file);
	} else if (strlen(out->at) != out->len) {
		rc = -EINVAL;
		snprintf(why, why_len, "%s contains NUL bytes, so it is no file of settings", file);
	}
	if (fd >= 0)
		close(fd);
	return rc;
}

/* Reads a profile's settings in a file: first the profile's section, then the section [services
 * NAME] that the profile names. That section may stand before the profile in the file, so the file
 * is read twice. */
static int profile_read(const char *file, bool config, const char *name, struct profile *out,
			char *why, size_t why_len)
{
	struct reading r = {out, name, config, false, file, why, why_len};
	struct bytes bytes, copy = {NULL, 0};
	int rc;

	if (!*file)
		return 0;
	rc = file_read(file, &bytes, why, why_len);
	if (!rc && bytes.at)
		rc = bytes_copy(&bytes, &copy, why, why_len);
	if (!rc && copy.at)
		rc = pst_ini_read(copy.at, file, profile_section, profile_put, &r, why, why_len);
	r.here = false;
	if (!rc && *out->services)
		rc = pst_ini_read(bytes.at, file, services_section, services_put, &r, why, why_len);
	bytes_free(&copy);
	bytes_free(&bytes);
	return rc;
}

/* Finds the name of a file: the value of the environment variable, or else ~/.aws/NAME. Writes ""
 * if HOME is not set. */
static int file_name(const char *variable, const char *name, char *out, size_t size, char *why,
		     size_t why_len)
{
	const char *set = getenv(variable), *home = getenv("HOME");
	bool at_home = !set || !*set || !strncmp(set, "~/", 2);
	int n;

	if (at_home && (!home || !*home))
		n = snprintf(out, size, "%s", "");
	else if (!set || !*set)
		n = snprintf(out, size, "%s/.aws/%s", home, name);
	else
		n = snprintf(out, size, "%s%s", at_home ? home : "", set + at_home);
	if ((size_t)n < size)
		return 0;
	snprintf(why, why_len, "the name of the file %s is too long", name);
	return -ENAMETOOLONG;
}

/* Copies the keys of a profile to `out` if the profile has keys. */
static int profile_keys(const struct profile *p, const char *file, struct pst_s3_settings *out,
			char *why, size_t why_len)
{
	if (!*p->access_key && !*p->secret)
		return 0;
	if (!*p->access_key || !*p->secret) {
		snprintf(why, why_len, "%s has %s but no %s for the profile: set both", file,
			 *p->access_key ? "aws_access_key_id" : "aws_secret_access_key",
			 *p->access_key ? "aws_secret_access_key" : "aws_access_key_id");
		return -EINVAL;
	}
	memcpy(out->access_key, p->access_key, sizeof(out->access_key));
	memcpy(out->secret, p->secret, sizeof(out->secret));
	memcpy(out->token, p->token, sizeof(out->token));
	return 0;
}

/* Copies the keys of the environment to `out` if the environment has keys. */
static int environment_keys(struct pst_s3_settings *out, char *why, size_t why_len)
{
	int rc = variable_copy("AWS_ACCESS_KEY_ID", out->access_key, sizeof(out->access_key), why,
			       why_len);

	rc = rc ? rc
		: variable_copy("AWS_SECRET_ACCESS_KEY", out->secret, sizeof(out->secret), why,
				why_len);
	rc = rc ? rc
		: variable_copy("AWS_SESSION_TOKEN", out->token, sizeof(out->token), why, why_len);
	if (rc)
		return rc;
	if (!*out->access_key != !*out->secret) {
		snprintf(why, why_len, "%s is set, but %s is not: set both or none",
			 *out->secret ? "AWS_SECRET_ACCESS_KEY" : "AWS_ACCESS_KEY_ID",
			 *out->secret ? "AWS_ACCESS_KEY_ID" : "AWS_SECRET_ACCESS_KEY");
		return -EINVAL;
	}
	if (*out->access_key)
		snprintf(out->source, sizeof(out->source), "the environment");
	else
		out->token[0] = '\0';
	return 0;
}

/* Explains that a profile's kind of credentials is not supported. */
static int foreign_fail(const char *profile, const char *setting, char *why, size_t why_len)
{
	snprintf(
		why, why_len,
		"profile %s uses %s, which is not supported. Let AWS's command print keys, and set "
		"them: eval \"$(aws configure export-credentials --profile %s --format env)\"",
		profile, setting, profile);
	return -EOPNOTSUPP;
}

/* The names of the two files, and the settings of the profile in each. */
struct files {
	char credentials_name[1025], config_name[1025];
	struct profile credentials, config;
};

/* Copies the keys of the files to `out`, unless the environment has keys. */
static int files_keys(const struct files *f, const char *profile, struct pst_s3_settings *out,
		      char *why, size_t why_len)
{
	const struct profile *foreign = *f->credentials.foreign ? &f->credentials : &f->config;
	int rc;

	if (*out->access_key)
		return 0;
	if (f->credentials.role || f->config.role)
		return foreign_fail(profile, "role_arn", why, why_len);
	rc = profile_keys(&f->credentials, f->credentials_name, out, why, why_len);
	if (!rc && !*out->access_key)
		rc = profile_keys(&f->config, f->config_name, out, why, why_len);
	if (!rc && *out->access_key)
		snprintf(out->source, sizeof(out->source), "profile %.40s", profile);
	if (!rc && !*out->access_key && *foreign->foreign)
		rc = foreign_fail(profile, foreign->foreign, why, why_len);
	return rc;
}

/* Sets `out` to the first of two environment variables that is set, or else to the first of
 * `values` that is not empty. All values are shorter than `size`. */
static int first_set(char *out, size_t size, const char *const variables[2],
		     const char *const values[4], char *why, size_t why_len)
{
	int rc = 0;

	out[0] = '\0';
	for (unsigned i = 0; i < 2 && !rc && !*out; i++)
		if (variables[i])
			rc = variable_copy(variables[i], out, size, why, why_len);
	for (unsigned i = 0; i < 4 && !rc && !*out; i++)
		if (values[i])
			snprintf(out, size, "%s", values[i]);
	return rc;
}

/* Sets the region, the endpoint and the CA bundle. */
static int places_set(const struct files *f, struct pst_s3_settings *out, char *why, size_t why_len)
{
	int rc = first_set(
		out->region, sizeof(out->region),
		(const char *const[]){"AWS_REGION", "AWS_DEFAULT_REGION"},
		(const char *const[]){f->config.region, f->credentials.region, "us-east-1", NULL},
		why, why_len);

	rc = rc ? rc
		: first_set(out->endpoint, sizeof(out->endpoint),
			    (const char *const[]){"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"},
			    (const char *const[]){f->config.s3_endpoint, f->config.endpoint,
						  f->credentials.endpoint, NULL},
			    why, why_len);
	return rc ? rc
		  : first_set(out->ca_bundle, sizeof(out->ca_bundle),
			      (const char *const[]){"AWS_CA_BUNDLE", NULL},
			      (const char *const[]){f->config.ca_bundle, f->credentials.ca_bundle,
						    NULL, NULL},
			      why, why_len);
}

/* Reads both files. `named` is true if the caller or the environment names the profile; a missing
 * profile is then an error. */
static int files_read(struct files *f, const char *profile, bool named, char *why, size_t why_len)
{
	int rc = file_name("AWS_SHARED_CREDENTIALS_FILE", "credentials", f->credentials_name,
			   sizeof(f->credentials_name), why, why_len);

	rc = rc ? rc
		: file_name("AWS_CONFIG_FILE", "config", f->config_name, sizeof(f->config_name),
			    why, why_len);
	rc = rc ? rc
		: profile_read(f->credentials_name, false, profile, &f->credentials, why, why_len);
	rc = rc ? rc : profile_read(f->config_name, true, profile, &f->config, why, why_len);
	if (!rc && named && !f->credentials.found && !f->config.found) {
		snprintf(why, why_len,
			 "there is no profile %s in %s or %s: add it there, or name another",
			 profile, f->credentials_name, f->config_name);
		rc = -ENOENT;
	}
	return rc;
}

/* ---- keys that the program gives ---- */

/* Keys of one profile. */
struct given {
	struct given *next;
	char profile[129], access_key[129], secret[257], token[4097];
};

static pthread_mutex_t given_lock = PTHREAD_MUTEX_INITIALIZER; /* protects the list */
static pthread_once_t given_once = PTHREAD_ONCE_INIT;
static struct given *given_list;

static void given_hold(void)
{
	pthread_mutex_lock(&given_lock);
}

static void given_let_go(void)
{
	pthread_mutex_unlock(&given_lock);
}

/* Without these handlers, a child that is forked while another thread holds the lock could never
 * take it. */
static void given_start(void)
{
	pthread_atfork(given_hold, given_let_go, given_let_go);
}

/* Removes the keys of a profile from the list. Returns them, or NULL. Called with the lock. */
static struct given *given_take(const char *profile)
{
	for (struct given **at = &given_list; *at; at = &(*at)->next)
		if (!strcmp((*at)->profile, profile)) {
			struct given *found = *at;

			*at = found->next;
			return found;
		}
	return NULL;
}

static void given_free(struct given *given)
{
	if (given)
		explicit_bzero(given, sizeof(*given));
	free(given);
}

/* Copies the keys of a profile. Returns false if none were given. */
static bool given_find(const char *profile, struct pst_s3_settings *out)
{
	struct given *at;

	pthread_mutex_lock(&given_lock);
	for (at = given_list; at && strcmp(at->profile, profile) != 0;)
		at = at->next;
	if (at) {
		memcpy(out->access_key, at->access_key, sizeof(at->access_key));
		memcpy(out->secret, at->secret, sizeof(at->secret));
		memcpy(out->token, at->token, sizeof(at->token));
		snprintf(out->source, sizeof(out->source), "the program, %.40s", profile);
	}
	pthread_mutex_unlock(&given_lock);
	return at != NULL;
}

int pst_s3_keys_give(const char *profile, const char *access_key, const char *secret,
		     const char *token, char *why, size_t why_len)
{
	static const char where[] = "the program's keys";
	struct given *given = calloc(1, sizeof(*given)), *before;
	int rc = given ? 0 : -ENOMEM;

	pthread_once(&given_once, given_start);
	if (rc)
		snprintf(why, why_len, "no memory for keys");
	else
		rc = value_copy(profile, given->profile, sizeof(given->profile), "the profile",
				where, why, why_len);
	if (!rc && access_key)
		rc = value_copy(access_key, given->access_key, sizeof(given->access_key),
				"the access key", where, why, why_len);
	if (!rc && secret)
		rc = value_copy(secret, given->secret, sizeof(given->secret), "the secret", where,
				why, why_len);
	if (!rc && token)
		rc = value_copy(token, given->token, sizeof(given->token), "the session token",
				where, why, why_len);
	if (!rc && (!*profile || (access_key && (!*access_key || !*given->secret)))) {
		snprintf(why, why_len, "%s need a profile's name, an access key and a secret",
			 where);
		rc = -EINVAL;
	}
	if (rc) {
		given_free(given);
		return rc;
	}
	pthread_mutex_lock(&given_lock);
	before = given_take(profile);
	if (access_key) {
		given->next = given_list;
		given_list = given;
	}
	pthread_mutex_unlock(&given_lock);
	given_free(before);
	if (!access_key)
		given_free(given);
	return 0;
}

/* ---- all settings ---- */

int pst_s3_settings_read(const char *profile, struct pst_s3_settings *out, char *why,
			 size_t why_len)
{
	const char *variable = getenv("AWS_PROFILE");
	bool asked = profile != NULL, named = asked || (variable && *variable);
	struct files *f = calloc(1, sizeof(*f));
	struct pst_s3_settings settings = {0};
	int rc = f ? 0 : -ENOMEM;

	if (!f) {
		snprintf(why, why_len, "no memory for the settings");
		return rc;
	}
	if (!asked)
		profile = named ? variable : "default";
	if (!asked || !given_find(profile, &settings)) {
		rc = files_read(f, profile, named, why, why_len);
		/* As in AWS's tools, a profile that the caller names takes precedence
		 * over the environment. */
		if (!rc && !asked)
			rc = environment_keys(&settings, why, why_len);
		rc = rc ? rc : files_keys(f, profile, &settings, why, why_len);
	}
	rc = rc ? rc : places_set(f, &settings, why, why_len);
	if (!rc)
		*out = settings;
	explicit_bzero(&settings, sizeof(settings));
	explicit_bzero(f, sizeof(*f));
	free(f);
	return rc;
}

void pst_s3_settings_clear(struct pst_s3_settings *settings)
{
	explicit_bzero(settings->secret, sizeof(settings->secret));
	explicit_bzero(settings->token, sizeof(settings->token));
}
