/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds a client's S3 settings in the order of AWS's tools: a profile that the caller names, then
 * the environment, then the profile that AWS_PROFILE names, or else the profile "default". Profiles
 * are in ~/.aws/credentials and ~/.aws/config. Keys that the program has given for a profile
 * replace the keys of these files. Called by src/storage/object_request.c, src/check/store.c and
 * gateway/upstream.c. The code must never print a secret.
 */
#ifndef PST_S3_CREDENTIALS_H
#define PST_S3_CREDENTIALS_H

#include <stdbool.h>
#include <stddef.h>

/* The settings of an S3 client. A string is empty if nothing sets it. */
struct pst_s3_settings {
	char access_key[129], secret[257];
	char token[4097];     /* session token */
	char region[65];      /* "us-east-1" if nothing sets it */
	char endpoint[1025];  /* AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, or endpoint_url */
	char ca_bundle[1025]; /* AWS_CA_BUNDLE or ca_bundle: file with certificates to trust */
	char source[64];      /* where the keys are from, for messages: "the environment" */
};

/*
 * Reads the settings. `profile` is the profile's name; NULL means AWS_PROFILE, or else "default".
 * Reads AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION,
 * AWS_DEFAULT_REGION, AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_CA_BUNDLE,
 * AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE. Missing files are no error, and neither are
 * missing keys. If `profile` is not NULL, the keys of the environment are not used. Returns 0. On
 * an error, returns a negative errno and writes a message to `why`. Errors are a named profile that
 * does not exist, and roles, SSO and credential_process, which are not supported (-EOPNOTSUPP).
 */
int pst_s3_settings_read(const char *profile, struct pst_s3_settings *out, char *why,
			 size_t why_len);

/*
 * Gives keys to a profile, which need not be in the files, for the rest of this process. Keys that
 * were given before are replaced. With NULL as access key, they are removed. `token` may be NULL.
 * Returns 0, or a negative errno with a text in `why`. Any thread.
 */
int pst_s3_keys_give(const char *profile, const char *access_key, const char *secret,
		     const char *token, char *why, size_t why_len);

/* Overwrites the secret and the token. */
void pst_s3_settings_clear(struct pst_s3_settings *settings);

#endif
