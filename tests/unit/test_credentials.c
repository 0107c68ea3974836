/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests where a client's S3 settings come from: environment variables, files and profiles, the
 * order in which they are used, and the error messages. No message may contain a secret.
 */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "s3/credentials.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const char *const variables[] = {
	"AWS_ACCESS_KEY_ID",
	"AWS_SECRET_ACCESS_KEY",
	"AWS_SESSION_TOKEN",
	"AWS_REGION",
	"AWS_DEFAULT_REGION",
	"AWS_ENDPOINT_URL_S3",
	"AWS_ENDPOINT_URL",
	"AWS_CA_BUNDLE",
	"AWS_PROFILE",
	"AWS_CONFIG_FILE",
	"AWS_SHARED_CREDENTIALS_FILE",
};
static char home[256];

/* Creates an empty home directory for each case, and removes the environment variables of AWS. */
static int home_make(void **state)
{
	static unsigned count;
	char folder[300], name[16];

	(void)state;
	for (unsigned i = 0; i < COUNT(variables); i++)
		unsetenv(variables[i]);
	snprintf(name, sizeof(name), "home%u", count++);
	test_file_name(home, sizeof(home), name);
	snprintf(folder, sizeof(folder), "%s/.aws", home);
	setenv("HOME", home, 1);
	return mkdir(home, 0700) || mkdir(folder, 0700);
}

static int home_remove(void **state)
{
	char name[300];

	(void)state;
	snprintf(name, sizeof(name), "%s/.aws/config", home);
	unlink(name);
	snprintf(name, sizeof(name), "%s/.aws/credentials", home);
	unlink(name);
	snprintf(name, sizeof(name), "%s/other", home);
	unlink(name);
	snprintf(name, sizeof(name), "%s/.aws", home);
	return rmdir(name) || rmdir(home);
}

/* Writes a file below the home directory. */
static void file_write(const char *name, const char *text, size_t len)
{
	char path[300];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", home, name);
	f = fopen(path, "w");
	assert_non_null(f);
	assert_int_equal(fwrite(text, 1, len, f), len);
	assert_int_equal(fclose(f), 0);
}

static void config(const char *text)
{
	file_write(".aws/config", text, strlen(text));
}

static void credentials(const char *text)
{
	file_write(".aws/credentials", text, strlen(text));
}

/* Reads the settings, which must succeed. */
static struct pst_s3_settings read_good(const char *profile)
{
	struct pst_s3_settings s;
	char why[512] = "";
	int rc = pst_s3_settings_read(profile, &s, why, sizeof(why));

	if (rc)
		fail_msg("error %d: %s", rc, why);
	return s;
}

/* Reads the settings, which must fail with a message that contains `words`, and no secret. */
static void read_bad(const char *profile, int wanted, const char *words)
{
	struct pst_s3_settings s = {.source = "untouched"};
	char why[512] = "";
	int rc = pst_s3_settings_read(profile, &s, why, sizeof(why));

	if (rc != wanted || !strstr(why, words))
		fail_msg("%d with '%s', expected %d with '%s'", rc, why, wanted, words);
	assert_null(strstr(why, "HIDDEN"));
	assert_string_equal(s.source, "untouched");
}

static void nothing_set(void **state)
{
	struct pst_s3_settings s = read_good(NULL);

	(void)state;
	assert_string_equal(s.access_key, "");
	assert_string_equal(s.secret, "");
	assert_string_equal(s.source, "");
	assert_string_equal(s.region, "us-east-1");
	assert_string_equal(s.endpoint, "");
	unsetenv("HOME");
	s = read_good(NULL);
	assert_string_equal(s.access_key, "");
	setenv("HOME", home, 1);
}

static void environment(void **state)
{
	struct pst_s3_settings s;

	(void)state;
	credentials("[default]\naws_access_key_id=FILE\naws_secret_access_key=HIDDENF\n"
		    "aws_session_token=TOKENF\n");
	config("[default]\nregion=file-1\nendpoint_url=http://file\nca_bundle=/file\n");
	s = read_good(NULL);
	assert_string_equal(s.access_key, "FILE");
	assert_string_equal(s.secret, "HIDDENF");
	assert_string_equal(s.token, "TOKENF");
	assert_string_equal(s.source, "profile default");
	assert_string_equal(s.region, "file-1");
	assert_string_equal(s.endpoint, "http://file");
	assert_string_equal(s.ca_bundle, "/file");

	setenv("AWS_ACCESS_KEY_ID", "ENV", 1);
	setenv("AWS_SECRET_ACCESS_KEY", "HIDDENE", 1);
	setenv("AWS_DEFAULT_REGION", "env-2", 1);
	setenv("AWS_ENDPOINT_URL", "http://env", 1);
	setenv("AWS_CA_BUNDLE", "/env with blank", 1);
	s = read_good(NULL);
	assert_string_equal(s.access_key, "ENV");
	assert_string_equal(s.secret, "HIDDENE");
	/* The session token in the file belongs to the keys in the file, not to those in the
	 * environment. */
	assert_string_equal(s.token, "");
	assert_string_equal(s.source, "the environment");
	assert_string_equal(s.region, "env-2");
	assert_string_equal(s.endpoint, "http://env");
	assert_string_equal(s.ca_bundle, "/env with blank");

	setenv("AWS_SESSION_TOKEN", "TOKENE", 1);
	setenv("AWS_REGION", "env-1", 1);
	setenv("AWS_ENDPOINT_URL_S3", "http://s3", 1);
	s = read_good(NULL);
	assert_string_equal(s.token, "TOKENE");
	assert_string_equal(s.region, "env-1");
	assert_string_equal(s.endpoint, "http://s3");
	/* A profile that the caller names takes precedence over the keys in the environment. */
	s = read_good("default");
	assert_string_equal(s.access_key, "FILE");
	assert_string_equal(s.token, "TOKENF");
	assert_string_equal(s.region, "env-1");

	pst_s3_settings_clear(&s);
	assert_string_equal(s.secret, "");
	assert_string_equal(s.token, "");
}

static void profiles(void **state)
{
	struct pst_s3_settings s;

	(void)state;
	credentials("\xef\xbb\xbf; a comment\n"
		    "[work]\r\n"
		    "AWS_Access_Key_ID = WORK \r\n"
		    "aws_secret_access_key\t=\tHIDDEN+/=\r\n"
		    "unknown = x\n"
		    "[default]\n"
		    "aws_access_key_id = DEFAULT # a comment\n"
		    "aws_secret_access_key = HIDDEN#no;comment\n");
	config("[profile work]\n"
	       "region = eu-1\n"
	       "services = mine\n"
	       "endpoint_url = http://all\n"
	       "s3 =\n"
	       "  max_concurrent_requests = 20\n"
	       "  endpoint_url = http://not-here\n"
	       "region = eu-2 ; the last one counts\n"
	       "[work]\n"
	       "region = not-a-profile\n"
	       "[profile \"with blank\"]\n"
	       "aws_access_key_id = BLANK\n"
	       "aws_secret_access_key = HIDDEN\n"
	       "[default]\n"
	       "region = us-2\n"
	       "[services mine]\n"
	       "ec2 =\n"
	       "\tendpoint_url = http://ec2\n"
	       "s3 = \n"
	       "\tendpoint_url = http://mine\n"
	       "[services other]\n"
	       "s3 =\n"
	       "  endpoint_url = http://other");
	s = read_good(NULL);
	assert_string_equal(s.access_key, "DEFAULT");
	assert_string_equal(s.secret, "HIDDEN#no;comment");
	assert_string_equal(s.region, "us-2");
	s = read_good("work");
	assert_string_equal(s.access_key, "WORK");
	assert_string_equal(s.secret, "HIDDEN+/=");
	assert_string_equal(s.region, "eu-2");
	assert_string_equal(s.endpoint, "http://mine");
	assert_string_equal(s.source, "profile work");
	s = read_good("with blank");
	assert_string_equal(s.access_key, "BLANK");
	assert_string_equal(s.region, "us-east-1");
	setenv("AWS_PROFILE", "work", 1);
	assert_string_equal(read_good(NULL).access_key, "WORK");
	read_bad("none", -ENOENT, "there is no profile none in ");
	setenv("AWS_PROFILE", "gone", 1);
	read_bad(NULL, -ENOENT, "there is no profile gone in ");
}

static void other_files(void **state)
{
	static const char other[] =
		"[default]\naws_access_key_id=OTHER\naws_secret_access_key=HIDDEN\n";
	char path[300];

	(void)state;
	credentials("[default]\naws_access_key_id=HOME\naws_secret_access_key=HIDDEN\n");
	file_write("other", other, strlen(other));
	setenv("AWS_SHARED_CREDENTIALS_FILE", "~/other", 1);
	assert_string_equal(read_good(NULL).access_key, "OTHER");
	snprintf(path, sizeof(path), "%s/other", home);
	setenv("AWS_SHARED_CREDENTIALS_FILE", path, 1);
	assert_string_equal(read_good(NULL).access_key, "OTHER");
	setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent/file", 1);
	assert_string_equal(read_good(NULL).access_key, "");
	/* The keys may also be in the file `config`. */
	setenv("AWS_CONFIG_FILE", path, 1);
	assert_string_equal(read_good(NULL).access_key, "OTHER");
}

static void kinds_that_are_not_supported(void **state)
{
	static const char *const settings[] = {
		"role_arn",	 "source_profile", "credential_source",	      "credential_process",
		"sso_start_url", "sso_session",	   "web_identity_token_file", "login_session",
	};
	char text[256], words[128];

	(void)state;
	for (unsigned i = 0; i < COUNT(settings); i++) {
		snprintf(text, sizeof(text), "[profile a]\n%s = HIDDEN\n", settings[i]);
		config(text);
		snprintf(words, sizeof(words), "profile a uses %s, which is not supported",
			 settings[i]);
		read_bad("a", -EOPNOTSUPP, words);
		read_bad("a", -EOPNOTSUPP, "aws configure export-credentials --profile a ");
		/* Keys in the environment take precedence, so the kind of the profile does not
		 * matter. */
		setenv("AWS_PROFILE", "a", 1);
		setenv("AWS_ACCESS_KEY_ID", "ENV", 1);
		setenv("AWS_SECRET_ACCESS_KEY", "HIDDEN", 1);
		assert_string_equal(read_good(NULL).access_key, "ENV");
		unsetenv("AWS_PROFILE");
		unsetenv("AWS_ACCESS_KEY_ID");
		unsetenv("AWS_SECRET_ACCESS_KEY");
		/* Of these settings, only role_arn takes precedence over keys in the same
		 * profile. */
		credentials("[a]\naws_access_key_id=FILE\naws_secret_access_key=HIDDEN\n");
		if (!i)
			read_bad("a", -EOPNOTSUPP, words);
		else
			assert_string_equal(read_good("a").access_key, "FILE");
		credentials("");
	}
	config("[profile a]\nsource_profile = b\nrole_arn = c\nsso_session = d\n");
	read_bad("a", -EOPNOTSUPP, "uses role_arn");
}

static void wrong_files(void **state)
{
	static char big[(1 << 20) + 2];
	char text[5000];

	(void)state;
	config("[default\n");
	read_bad(NULL, -EINVAL, "/.aws/config, line 1: add the missing bracket ]");
	config("\n[default]\naws_secret_access_key HIDDEN\n");
	read_bad(NULL, -EINVAL, "/.aws/config, line 3: write NAME = VALUE");
	config("[default]\n=HIDDEN\n");
	read_bad(NULL, -EINVAL, "line 2: write NAME = VALUE");
	config("[default]\naws_access_key_id = A\n");
	read_bad(NULL, -EINVAL,
		 "has aws_access_key_id but no aws_secret_access_key for the profile");
	config("[default]\naws_secret_access_key = HIDDEN\n");
	read_bad(NULL, -EINVAL,
		 "has aws_secret_access_key but no aws_access_key_id for the profile");
	config("[default]\nregion = a\x01"
	       "b\n");
	read_bad(NULL, -EINVAL, "region in ");
	file_write(".aws/config", "[default]\0\n", 11);
	read_bad(NULL, -EINVAL, "contains NUL bytes");
	memset(big, '#', sizeof(big));
	file_write(".aws/config", big, 1 << 20);
	read_good(NULL);
	file_write(".aws/config", big, (1 << 20) + 1);
	read_bad(NULL, -EFBIG, "is longer than 1 MiB");
	snprintf(text, sizeof(text), "[default]\naws_access_key_id=A\naws_secret_access_key=%0*d\n",
		 256, 0);
	config(text);
	assert_int_equal(strlen(read_good(NULL).secret), 256);
	snprintf(text, sizeof(text), "[default]\naws_access_key_id=A\naws_secret_access_key=%0*d\n",
		 257, 0);
	config(text);
	read_bad(NULL, -EINVAL, "aws_secret_access_key in ");
	read_bad(NULL, -EINVAL, "is longer than 256 characters");
	config("");
	setenv("AWS_SHARED_CREDENTIALS_FILE", home, 1);
	read_bad(NULL, -EISDIR, "cannot read ");
}

/* A shell's <(COMMAND) passes the name of a pipe, whose bytes can be read only once. In the pipe, a
 * section to which the profile refers comes before the profile. */
static void file_that_is_a_pipe(void **state)
{
	static const char text[] = "[services mine]\n"
				   "s3 =\n"
				   "  endpoint_url = http://mine\n"
				   "[default]\n"
				   "region = eu-1\n"
				   "services = mine\n";
	struct pst_s3_settings s;
	char name[32];
	int fds[2];

	(void)state;
	assert_int_equal(pipe(fds), 0);
	assert_int_equal(write(fds[1], text, sizeof(text) - 1), sizeof(text) - 1);
	assert_int_equal(close(fds[1]), 0);
	snprintf(name, sizeof(name), "/dev/fd/%d", fds[0]);
	setenv("AWS_CONFIG_FILE", name, 1);
	s = read_good(NULL);
	assert_string_equal(s.region, "eu-1");
	assert_string_equal(s.endpoint, "http://mine");
	assert_int_equal(close(fds[0]), 0);
}

/* If the process was started by root: changes its effective user to another user if `root` is
 * false, and back to root if `root` is true. */
static void be_root(bool root)
{
	if (!getuid())
		assert_int_equal(seteuid(root ? 0 : 65534), 0);
}

/* Reads the settings, as another user if this program runs as root, and compares the region. */
static void region_is(const char *region)
{
	struct pst_s3_settings s;

	be_root(false);
	s = read_good(NULL);
	be_root(true);
	assert_string_equal(s.region, region);
}

/* A home directory that the user may not enter counts as one without files. A file that the user
 * may not read is an error. The names are relative, because the folders above the home directory
 * may be closed to other users. */
static void files_of_another_user(void **state)
{
	int here = open(".", O_PATH | O_CLOEXEC);
	char name[300];

	(void)state;
	assert_true(here >= 0);
	config("[default]\nregion=eu-1\n");
	snprintf(name, sizeof(name), "%s/.aws", home);
	assert_int_equal(chmod(name, 0755), 0);
	snprintf(name, sizeof(name), "%s/.aws/config", home);
	assert_int_equal(chmod(name, 0644), 0);
	assert_int_equal(chmod(home, 0755), 0);
	assert_int_equal(chdir(home), 0);
	setenv("HOME", ".", 1);
	region_is("eu-1");
	assert_int_equal(chmod(".", 0), 0);
	region_is("us-east-1");
	/* Without root's rights, a name below a closed folder cannot be found. */
	assert_int_equal(fchdir(here), 0);
	assert_int_equal(chmod(home, 0755), 0);
	assert_int_equal(chdir(home), 0);
	assert_int_equal(chmod(".aws/config", 0), 0);
	be_root(false);
	read_bad(NULL, -EACCES, "./.aws/config: Permission denied");
	be_root(true);
	assert_int_equal(fchdir(here), 0);
	close(here);
}

static void wrong_environment(void **state)
{
	(void)state;
	setenv("AWS_ACCESS_KEY_ID", "ENV", 1);
	read_bad(NULL, -EINVAL, "AWS_ACCESS_KEY_ID is set, but AWS_SECRET_ACCESS_KEY is not");
	setenv("AWS_SECRET_ACCESS_KEY", "HIDDEN\r\nx-amz-acl: public-read", 1);
	read_bad(NULL, -EINVAL, "AWS_SECRET_ACCESS_KEY in the environment contains a control");
	unsetenv("AWS_ACCESS_KEY_ID");
	setenv("AWS_SECRET_ACCESS_KEY", "HIDDEN", 1);
	read_bad(NULL, -EINVAL, "AWS_SECRET_ACCESS_KEY is set, but AWS_ACCESS_KEY_ID is not");
}

/* Keys that the program gives to a profile. */
static void given_keys(void **state)
{
	static const struct {
		const char *profile, *access_key, *secret, *token, *words;
	} bad[] = {
		{"", "AKGIVEN", "HIDDEN", NULL, "need a profile's name"},
		{"given", "", "HIDDEN", NULL, "an access key and a secret"},
		{"given", "AKGIVEN", "", NULL, "an access key and a secret"},
		{"given", "AK\nGIVEN", "HIDDEN", NULL, "the access key in"},
		{"given", "AKGIVEN", "HIDDEN\r", NULL, "the secret in"},
		{"given", "AKGIVEN", "HIDDEN", "HIDDEN\n", "the session token in"},
	};
	struct pst_s3_settings s;
	char why[512] = "";

	(void)state;
	setenv("AWS_ACCESS_KEY_ID", "AKENV", 1);
	setenv("AWS_SECRET_ACCESS_KEY", "HIDDEN", 1);
	setenv("AWS_REGION", "eu-test-1", 1);
	credentials("[given]\naws_access_key_id = AKFILE\naws_secret_access_key = HIDDEN\n");
	for (size_t i = 0; i < COUNT(bad); i++) {
		int rc = pst_s3_keys_give(bad[i].profile, bad[i].access_key, bad[i].secret,
					  bad[i].token, why, sizeof(why));

		if (rc != -EINVAL || !strstr(why, bad[i].words) || strstr(why, "HIDDEN"))
			fail_msg("keys %zu: %d with '%s', expected %d with '%s'", i, rc, why,
				 -EINVAL, bad[i].words);
	}
	assert_string_equal(read_good("given").access_key, "AKFILE");
	assert_int_equal(pst_s3_keys_give("given", "AKGIVEN", "S1", "T1", why, sizeof(why)), 0);
	assert_int_equal(pst_s3_keys_give("new", "AKNEW", "S2", NULL, why, sizeof(why)), 0);
	s = read_good("given");
	assert_string_equal(s.access_key, "AKGIVEN");
	assert_string_equal(s.secret, "S1");
	assert_string_equal(s.token, "T1");
	assert_string_equal(s.region, "eu-test-1");
	assert_string_equal(s.source, "the program, given");
	s = read_good("new");
	assert_string_equal(s.access_key, "AKNEW");
	assert_string_equal(s.secret, "S2");
	assert_string_equal(s.token, "");
	assert_string_equal(read_good(NULL).access_key, "AKENV");
	assert_int_equal(pst_s3_keys_give("given", "AKLATER", "S3", NULL, why, sizeof(why)), 0);
	s = read_good("given");
	assert_string_equal(s.access_key, "AKLATER");
	assert_string_equal(s.token, "");
	assert_int_equal(pst_s3_keys_give("given", NULL, NULL, NULL, why, sizeof(why)), 0);
	assert_int_equal(pst_s3_keys_give("new", NULL, NULL, NULL, why, sizeof(why)), 0);
	assert_string_equal(read_good("given").access_key, "AKFILE");
	read_bad("new", -ENOENT, "there is no profile new");
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, home_make, home_remove)
	const struct CMUnitTest tests[] = {
		CASE(nothing_set),
		CASE(environment),
		CASE(profiles),
		CASE(other_files),
		CASE(kinds_that_are_not_supported),
		CASE(wrong_files),
		CASE(file_that_is_a_pipe),
		CASE(files_of_another_user),
		CASE(wrong_environment),
		CASE(given_keys),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
