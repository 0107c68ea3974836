/* SPDX-License-Identifier: Apache-2.0 */
/* Implements sigv4.h: the signing key, and the signature over the canonical request. */
#include "s3/sigv4.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/digits.h"
#include "s3/canonical.h"
#include "s3/hash.h"
#include "s3/uri.h"

#define ALGORITHM "AWS4-HMAC-SHA256"
#define SERVICE "s3"
#define SKEW_S (15 * 60) /* maximum difference in s between the clocks of client and server */

void pst_sigv4_date(time_t now, char out[PST_SIGV4_DATE])
{
	struct tm tm = {0};

	gmtime_r(&now, &tm);
	if (!strftime(out, PST_SIGV4_DATE, "%Y%m%dT%H%M%SZ", &tm))
		out[0] = '\0';
}

/* Parses a time such as 20261122T190000Z. */
static bool date_parse(const char *text, time_t *out)
{
	struct tm tm = {0};
	char again[PST_SIGV4_DATE];

	for (unsigned i = 0; i < 16; i++)
		if (i == 8 || i == 15 ? text[i] != (i == 8 ? 'T' : 'Z')
				      : text[i] < '0' || text[i] > '9')
			return false;
	if (text[16] || sscanf(text, "%4d%2d%2dT%2d%2d%2dZ", &tm.tm_year, &tm.tm_mon, &tm.tm_mday,
			       &tm.tm_hour, &tm.tm_min, &tm.tm_sec) != 6)
		return false;
	tm.tm_year -= 1900;
	tm.tm_mon -= 1;
	*out = timegm(&tm);
	/* timegm turns 30 February into a day of March, so the texts then differ. */
	pst_sigv4_date(*out, again);
	return !strcmp(again, text);
}

/* Parses the value of x-amz-date or of a header date, and writes it to `out` in the form of
 * x-amz-date. The value has this form already, or one such as "Fri, 24 May 2013 00:00:00 GMT" (RFC
 * 9110, IMF-fixdate). botocore writes -0000 in place of GMT. */
static bool date_read(const char *text, char out[PST_SIGV4_DATE], time_t *time)
{
	static const char days[] = "SunMonTueWedThuFriSat";
	static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
	struct tm tm = {0};
	char month[4] = "", again[64];
	const char *found;

	if (date_parse(text, time)) {
		memcpy(out, text, PST_SIGV4_DATE);
		return true;
	}
	if (strlen(text) < 25 || sscanf(text + 5, "%2d %3s %4d %2d:%2d:%2d", &tm.tm_mday, month,
					&tm.tm_year, &tm.tm_hour, &tm.tm_min, &tm.tm_sec) != 6)
		return false;
	found = strstr(months, month);
	if (!found || strlen(month) != 3)
		return false;
	tm.tm_mon = (int)(found - months) / 3;
	tm.tm_year -= 1900;
	*time = timegm(&tm);
	/* timegm has set the day of the week, so a wrong day in `text` is detected. */
	snprintf(again, sizeof(again), "%.3s, %02d %.3s %04d %02d:%02d:%02d", days + 3 * tm.tm_wday,
		 tm.tm_mday, months + 3 * tm.tm_mon, tm.tm_year + 1900, tm.tm_hour, tm.tm_min,
		 tm.tm_sec);
	pst_sigv4_date(*time, out);
	return !strncmp(again, text, 25) &&
	       (!strcmp(text + 25, " GMT") || !strcmp(text + 25, " -0000") ||
		!strcmp(text + 25, " +0000")) &&
	       date_parse(out, time); /* fails if the year is negative */
}

/* Computes the key of all signatures with this secret on one day. */
static bool signing_key(const char *secret, const char *date, const char *region,
			unsigned char key[32])
{
	struct pst_text first = {0};
	bool good;

	pst_text_put_str(&first, "AWS4");
	pst_text_put_str(&first, secret);
	good = !first.failed && pst_hmac_sha256(first.at, first.len, date, 8, key) &&
	       pst_hmac_sha256(key, 32, region, strlen(region), key) &&
	       pst_hmac_sha256(key, 32, SERVICE, strlen(SERVICE), key) &&
	       pst_hmac_sha256(key, 32, "aws4_request", 12, key);
	if (first.at)
		explicit_bzero(first.at, first.len);
	free(first.at);
	return good;
}

struct pst_sigv4_day {
	pthread_mutex_t lock;
	char date[9]; /* day for which `key` is valid, as YYYYMMDD; "" if there is no key */
	char region[65];
	unsigned char key[32];
};

struct pst_sigv4_day *pst_sigv4_day_open(void)
{
	struct pst_sigv4_day *day = calloc(1, sizeof(*day));

	if (day)
		pthread_mutex_init(&day->lock, NULL);
	return day;
}

void pst_sigv4_day_close(struct pst_sigv4_day *day)
{
	if (!day)
		return;
	pthread_mutex_destroy(&day->lock);
	explicit_bzero(day, sizeof(*day));
	free(day);
}

/* Returns whether `day` has the key of a date and region, and copies it. Does not wait for the
 * lock: after a fork, the child's copy of the lock may be locked, and no thread of the child would
 * release it. */
static bool day_take(struct pst_sigv4_day *day, const char *date, const char *region,
		     unsigned char key[32])
{
	bool known;

	if (pthread_mutex_trylock(&day->lock))
		return false;
	known = day->date[0] && !memcmp(day->date, date, 8) && !strcmp(day->region, region);
	if (known)
		memcpy(key, day->key, sizeof(day->key));
	pthread_mutex_unlock(&day->lock);
	return known;
}

static void day_put(struct pst_sigv4_day *day, const char *date, const char *region,
		    const unsigned char key[32])
{
	if (strlen(region) >= sizeof(day->region) || pthread_mutex_trylock(&day->lock))
		return;
	memcpy(day->date, date, 8);
	memcpy(day->region, region, strlen(region) + 1);
	memcpy(day->key, key, sizeof(day->key));
	pthread_mutex_unlock(&day->lock);
}

/* Copies the signing key of one secret and day from the cache `day`. If the cache has none,
 * computes it. */
static bool day_key(struct pst_sigv4_day *day, const char *secret, const char *date,
		    const char *region, unsigned char key[32])
{
	if (day && day_take(day, date, region, key))
		return true;
	if (!signing_key(secret, date, region, key))
		return false;
	if (day)
		day_put(day, date, region, key);
	return true;
}

/* Appends DATE/REGION/SERVICE/aws4_request. */
static void scope_put(const char *date, const char *region, const char *service,
		      struct pst_text *out)
{
	pst_text_put(out, date, 8);
	pst_text_put_str(out, "/");
	pst_text_put_str(out, region);
	pst_text_put_str(out, "/");
	pst_text_put_str(out, service);
	pst_text_put_str(out, "/aws4_request");
}

/* The values that a signature is computed from, besides the request. */
struct terms {
	const char *date, *region, *service, *signed_headers, *payload;
	const unsigned char *key;
};

/* Computes the signature of a request as hex digits. Returns 0 or an error of pst_canonical_put. */
static int signature_make(const struct pst_sigv4_request *req, const struct terms *terms,
			  char out[PST_SHA256_HEX])
{
	struct pst_text canonical = {0}, text = {0};
	char digest[PST_SHA256_HEX];
	unsigned char mac[32];
	int rc = pst_canonical_put(req, terms->signed_headers, terms->payload, &canonical);

	if (!rc && !pst_sha256_hex(canonical.at, canonical.len, digest))
		rc = -ENOMEM;
	if (!rc) {
		pst_text_put_str(&text, ALGORITHM "\n");
		pst_text_put_str(&text, terms->date);
		pst_text_put_str(&text, "\n");
		scope_put(terms->date, terms->region, terms->service, &text);
		pst_text_put_str(&text, "\n");
		pst_text_put_str(&text, digest);
		if (text.failed || !pst_hmac_sha256(terms->key, 32, text.at, text.len, mac))
			rc = -ENOMEM;
	}
	if (!rc)
		pst_hex(mac, sizeof(mac), out);
	free(text.at);
	free(canonical.at);
	return rc;
}

static int name_compare(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Appends the names of the request's headers: in order, each once, with semicolons between. */
static void signed_headers_put(const struct pst_sigv4_request *req, struct pst_text *out)
{
	const char *names[PST_SIGV4_HEADERS_MAX];

	if (req->header_count > PST_SIGV4_HEADERS_MAX) {
		out->failed = true;
		return;
	}
	for (unsigned i = 0; i < req->header_count; i++)
		names[i] = req->headers[i].name;
	qsort(names, req->header_count, sizeof(names[0]), name_compare);
	for (unsigned i = 0; i < req->header_count; i++) {
		if (i && !strcmp(names[i], names[i - 1]))
			continue;
		pst_text_put_str(out, i ? ";" : "");
		pst_text_put_str(out, names[i]);
	}
}

/* Signs a request with a client's keys. Sets out->failed if that is impossible. */
static void request_sign(const struct pst_sigv4_request *req, const struct pst_sigv4_keys *keys,
			 const char *date, const struct pst_text *names, const char *payload,
			 struct pst_text *out)
{
	unsigned char key[32];
	char signature[PST_SHA256_HEX];
	const struct terms terms = {
		.date = date,
		.region = keys->region,
		.service = SERVICE,
		.signed_headers = names->at ? names->at : "",
		.payload = payload,
		.key = key,
	};

	if (names->failed || !day_key(keys->day, keys->secret, date, keys->region, key) ||
	    signature_make(req, &terms, signature))
		out->failed = true;
	else
		pst_text_put_str(out, signature);
	explicit_bzero(key, sizeof(key));
}

void pst_sigv4_sign(const struct pst_sigv4_request *req, const struct pst_sigv4_keys *keys,
		    time_t now, struct pst_text *out)
{
	struct pst_text names = {0};
	char date[PST_SIGV4_DATE];

	pst_sigv4_date(now, date);
	signed_headers_put(req, &names);
	pst_text_put_str(out, ALGORITHM " Credential=");
	pst_text_put_str(out, keys->access_key);
	pst_text_put_str(out, "/");
	scope_put(date, keys->region, SERVICE, out);
	pst_text_put_str(out, ", SignedHeaders=");
	pst_text_put_str(out, names.at ? names.at : "");
	pst_text_put_str(out, ", Signature=");
	request_sign(req, keys, date, &names, req->payload, out);
	free(names.at);
}

/* Appends a parameter of a query. */
static void param_put(const char *name, const char *value, size_t len, struct pst_text *out)
{
	pst_text_put_str(out, out->len ? "&" : "");
	pst_text_put_str(out, name);
	pst_text_put_str(out, "=");
	pst_uri_put(out, value, len, false);
}

/* Returns the value of a header. *count is the number of headers with this name. */
static const char *header_find(const struct pst_sigv4_request *req, const char *name,
			       unsigned *count)
{
	const char *value = NULL;

	*count = 0;
	for (unsigned i = 0; i < req->header_count; i++) {
		if (strcmp(req->headers[i].name, name))
			continue;
		value = req->headers[i].value;
		++*count;
	}
	return value;
}

/* Returns the payload that the signature of a presigned request covers. Like botocore, clients that
 * sign the header x-amz-content-sha256 sign its value instead of UNSIGNED-PAYLOAD. */
static const char *presigned_payload(const struct pst_sigv4_request *req)
{
	unsigned count;
	const char *value = header_find(req, "x-amz-content-sha256", &count);

	return value ? value : PST_SIGV4_UNSIGNED;
}

void pst_sigv4_presign(const struct pst_sigv4_request *req, const struct pst_sigv4_keys *keys,
		       time_t now, unsigned expires_s, struct pst_text *out)
{
	struct pst_sigv4_request with_query = *req;
	struct pst_text names = {0}, credential = {0}, expires = {0}, query = {0};
	char date[PST_SIGV4_DATE];

	pst_sigv4_date(now, date);
	signed_headers_put(req, &names);
	pst_text_put_str(&credential, keys->access_key);
	pst_text_put_str(&credential, "/");
	scope_put(date, keys->region, SERVICE, &credential);
	pst_text_put_number(&expires, expires_s);

	pst_text_put_str(&query, req->query);
	param_put("X-Amz-Algorithm", ALGORITHM, strlen(ALGORITHM), &query);
	param_put("X-Amz-Credential", credential.at, credential.at ? credential.len : 0, &query);
	param_put("X-Amz-Date", date, strlen(date), &query);
	param_put("X-Amz-Expires", expires.at, expires.at ? expires.len : 0, &query);
	if (keys->token)
		param_put("X-Amz-Security-Token", keys->token, strlen(keys->token), &query);
	param_put("X-Amz-SignedHeaders", names.at, names.at ? names.len : 0, &query);
	if (credential.failed || expires.failed || query.failed || !expires_s ||
	    expires_s > PST_SIGV4_EXPIRES_MAX) {
		out->failed = true;
	} else {
		with_query.query = query.at;
		pst_text_put(out, query.at, query.len);
		pst_text_put_str(out, "&X-Amz-Signature=");
		request_sign(&with_query, keys, date, &names, presigned_payload(req), out);
	}
	free(query.at);
	free(expires.at);
	free(credential.at);
	free(names.at);
}

/* Copies a word of visible ASCII characters. Refuses an empty word and one that is too long. */
static bool word_copy(const char *word, size_t len, char *out, size_t size)
{
	if (!len || len >= size)
		return false;
	for (size_t i = 0; i < len; i++)
		if (word[i] <= ' ' || word[i] > '~')
			return false;
	memcpy(out, word, len);
	out[len] = '\0';
	return true;
}

/* Parses ACCESS-KEY/DATE/REGION/SERVICE/aws4_request. The access key may contain slashes. `day`
 * gets the eight digits of the date. */
static bool credential_parse(const char *text, size_t len, struct pst_sigv4_claim *out, char day[9])
{
	const char *from[5];
	size_t lens[5];

	for (unsigned i = 5; i--;) {
		size_t n = 0;

		while (n < len && (!i || text[len - 1 - n] != '/'))
			n++;
		from[i] = text + len - n;
		lens[i] = n;
		if (i && n == len)
			return false;
		len -= i ? n + 1 : n;
	}
	return word_copy(from[0], lens[0], out->access_key, sizeof(out->access_key)) &&
	       lens[1] == 8 && word_copy(from[1], 8, day, 9) &&
	       word_copy(from[2], lens[2], out->region, sizeof(out->region)) &&
	       word_copy(from[3], lens[3], out->service, sizeof(out->service)) && lens[4] == 12 &&
	       !memcmp(from[4], "aws4_request", 12);
}

/* Checks that a list of header names is in lower case, in order and without repetition, and copies
 * it. So a list has one form only, and its names cannot be mistaken for other parts of the
 * canonical request. */
static bool signed_headers_parse(const char *text, size_t len, struct pst_sigv4_claim *out)
{
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyz0123456789-_.!#$%&'*+^`|~";
	char *list = out->signed_headers;
	char previous[sizeof(out->signed_headers)] = "";

	if (!word_copy(text, len, list, sizeof(out->signed_headers)))
		return false;
	for (char *at = list;; at++) {
		size_t n = strspn(at, allowed);
		char end = at[n];

		if (!n || (end && end != ';'))
			return false;
		at[n] = '\0';
		if (strcmp(previous, at) >= 0)
			return false;
		memcpy(previous, at, n + 1);
		at[n] = end;
		at += n;
		if (!end)
			return true;
	}
}

static bool signature_parse(const char *text, size_t len, struct pst_sigv4_claim *out)
{
	return len == 64 && word_copy(text, len, out->signature, sizeof(out->signature)) &&
	       strspn(out->signature, "0123456789abcdef") == 64;
}

/* Parses the value of the header authorization after the name of the algorithm. */
static enum pst_sigv4_result header_parse(const char *at, struct pst_sigv4_claim *out, char day[9])
{
	static const char blanks[] = " \t", ends[] = " \t,";
	unsigned found = 0, bit;

	for (at += strspn(at, ends); *at; at += strspn(at, ends)) {
		size_t name_len = strcspn(at, "=,"), len;
		const char *value = at + name_len + (at[name_len] == '=');
		bool good;

		len = strcspn(value, ends);
		if (name_len == 10 && !memcmp(at, "Credential", 10)) {
			bit = 1;
			good = credential_parse(value, len, out, day);
		} else if (name_len == 13 && !memcmp(at, "SignedHeaders", 13)) {
			bit = 2;
			good = signed_headers_parse(value, len, out);
		} else {
			bit = 4;
			good = name_len == 9 && !memcmp(at, "Signature", 9) &&
			       signature_parse(value, len, out);
		}
		at = value + len + strspn(value + len, blanks);
		if (!good || (found & bit) || (*at && *at != ','))
			return PST_SIGV4_MALFORMED;
		found |= bit;
	}
	return found == 7 ? PST_SIGV4_OK : PST_SIGV4_MALFORMED;
}

/* Parses a number of seconds. */
static bool expires_parse(const char *text, size_t len, struct pst_sigv4_claim *out)
{
	if (!len || len > 6)
		return false;
	for (out->expires_s = 0; len; len--, text++) {
		if (*text < '0' || *text > '9')
			return false;
		out->expires_s = out->expires_s * 10 + (unsigned)(*text - '0');
	}
	return out->expires_s >= 1 && out->expires_s <= PST_SIGV4_EXPIRES_MAX;
}

/* The parameters of a presigned query that the server evaluates. */
enum { P_ALGORITHM, P_CREDENTIAL, P_DATE, P_EXPIRES, P_HEADERS, P_SIGNATURE, P_OLD_KEY, P_COUNT };
static const char *const param_names[P_COUNT] = {
	[P_ALGORITHM] = "X-Amz-Algorithm",
	[P_CREDENTIAL] = "X-Amz-Credential",
	[P_DATE] = "X-Amz-Date",
	[P_EXPIRES] = "X-Amz-Expires",
	[P_HEADERS] = "X-Amz-SignedHeaders",
	[P_SIGNATURE] = "X-Amz-Signature",
	[P_OLD_KEY] = "AWSAccessKeyId",
};

/* Finds the parameters of a presigned query, and decodes their values into the buffer `room`, which
 * has one byte more than the query. Returns false if a parameter occurs twice, or if an escape is
 * malformed. */
static bool params_find(const char *query, char *room, const char *values[P_COUNT])
{
	const char *name, *value;
	size_t name_len, value_len;

	while (pst_uri_next(&query, &name, &name_len, &value, &value_len)) {
		long n = pst_uri_parse(name, name_len, true, room);
		unsigned i = 0;

		if (n < 0)
			return false;
		while (i < P_COUNT && ((size_t)n != strlen(param_names[i]) ||
				       memcmp(room, param_names[i], (size_t)n)))
			i++;
		if (i == P_COUNT)
			continue;
		/* `room` is long enough for the NULs, because names and equals signs do not stay in
		 * it. */
		n = pst_uri_parse(value, value_len, true, room);
		if (values[i] || n < 0 || strlen(room) != (size_t)n)
			return false;
		values[i] = room;
		room += n + 1;
	}
	return true;
}

/* Parses the parameters of a presigned query. */
static enum pst_sigv4_result params_parse(const char *const values[P_COUNT],
					  struct pst_sigv4_claim *out, char day[9])
{
	out->presigned = true;
	for (unsigned i = 0; i < P_OLD_KEY; i++)
		if (!values[i])
			return PST_SIGV4_MALFORMED;
	if (credential_parse(values[P_CREDENTIAL], strlen(values[P_CREDENTIAL]), out, day) &&
	    word_copy(values[P_DATE], strlen(values[P_DATE]), out->date, sizeof(out->date)) &&
	    date_parse(out->date, &out->time) &&
	    expires_parse(values[P_EXPIRES], strlen(values[P_EXPIRES]), out) &&
	    signed_headers_parse(values[P_HEADERS], strlen(values[P_HEADERS]), out) &&
	    signature_parse(values[P_SIGNATURE], strlen(values[P_SIGNATURE]), out))
		return PST_SIGV4_OK;
	return PST_SIGV4_MALFORMED;
}

/* Finds the signature in the header or in the query. `room` is for params_find. */
static enum pst_sigv4_result claim_find(const struct pst_sigv4_request *req, char *room,
					struct pst_sigv4_claim *out, char day[9])
{
	const char *values[P_COUNT] = {0};
	unsigned count, dates;
	const char *header = header_find(req, "authorization", &count);
	const char *date = header_find(req, "x-amz-date", &dates);
	size_t len;

	if (!params_find(req->query, room, values) || count > 1)
		return PST_SIGV4_MALFORMED;
	if (!header) {
		if (values[P_ALGORITHM] && strcmp(values[P_ALGORITHM], ALGORITHM))
			return PST_SIGV4_OLD_VERSION;
		if (values[P_ALGORITHM] || values[P_CREDENTIAL] || values[P_SIGNATURE])
			return params_parse(values, out, day);
		return values[P_OLD_KEY] ? PST_SIGV4_OLD_VERSION : PST_SIGV4_ANONYMOUS;
	}
	if (values[P_ALGORITHM] || values[P_CREDENTIAL] || values[P_SIGNATURE])
		return PST_SIGV4_MALFORMED;
	header += strspn(header, " \t");
	len = strcspn(header, " \t");
	if (len != strlen(ALGORITHM) || memcmp(header, ALGORITHM, len))
		return PST_SIGV4_OLD_VERSION;
	/* Clients that send a header date need no x-amz-date. */
	if (!dates)
		date = header_find(req, "date", &dates);
	if (dates != 1 || !date_read(date, out->date, &out->time))
		return PST_SIGV4_MALFORMED;
	return header_parse(header + len, out, day);
}

enum pst_sigv4_result pst_sigv4_claim(const struct pst_sigv4_request *req,
				      struct pst_sigv4_claim *out)
{
	char *room = malloc(strlen(req->query) + 1);
	struct pst_sigv4_claim claim = {0};
	enum pst_sigv4_result result = PST_SIGV4_MALFORMED;
	char day[9] = "";

	memset(out, 0, sizeof(*out));
	if (room && req->header_count <= PST_SIGV4_HEADERS_MAX)
		result = claim_find(req, room, &claim, day);
	free(room);
	if (result == PST_SIGV4_OK && memcmp(day, claim.date, 8))
		result = PST_SIGV4_MALFORMED;
	if (result == PST_SIGV4_OK)
		*out = claim;
	return result;
}

/* Returns whether a list of signed headers contains a name. */
static bool names_header(const char *list, const char *name)
{
	size_t len = strlen(name);

	for (; *list; list += strspn(list, ";")) {
		size_t n = strcspn(list, ";");

		if (n == len && !memcmp(list, name, n))
			return true;
		list += n;
	}
	return false;
}

/* Returns whether the signature covers host and all headers x-amz-*. */
static bool headers_are_signed(const struct pst_sigv4_request *req,
			       const struct pst_sigv4_claim *claim)
{
	if (!names_header(claim->signed_headers, "host"))
		return false;
	for (unsigned i = 0; i < req->header_count; i++)
		if (!strncmp(req->headers[i].name, "x-amz-", 6) &&
		    !names_header(claim->signed_headers, req->headers[i].name))
			return false;
	return true;
}

static enum pst_sigv4_result time_check(const struct pst_sigv4_claim *claim, time_t now)
{
	if (claim->time > now + SKEW_S)
		return PST_SIGV4_SKEWED;
	if (claim->presigned)
		return now > claim->time + (time_t)claim->expires_s ? PST_SIGV4_EXPIRED
								    : PST_SIGV4_OK;
	return now > claim->time + SKEW_S ? PST_SIGV4_SKEWED : PST_SIGV4_OK;
}

enum pst_sigv4_result pst_sigv4_verify(const struct pst_sigv4_request *req,
				       struct pst_sigv4_claim *claim, const char *secret,
				       struct pst_sigv4_day *day, const char *region, time_t now)
{
	char signature[PST_SHA256_HEX];
	const struct terms terms = {
		.date = claim->date,
		.region = claim->region,
		.service = claim->service,
		.signed_headers = claim->signed_headers,
		.payload = claim->presigned ? presigned_payload(req) : req->payload,
		.key = claim->signing_key,
	};
	enum pst_sigv4_result result;
	int rc;

	if (!secret)
		return PST_SIGV4_UNKNOWN_KEY;
	if (strcmp(claim->service, SERVICE) || (region && strcmp(claim->region, region)))
		return PST_SIGV4_WRONG_REGION;
	if (!terms.payload)
		return PST_SIGV4_MALFORMED;
	if (!headers_are_signed(req, claim))
		return PST_SIGV4_UNSIGNED_HEADER;
	result = time_check(claim, now);
	if (result != PST_SIGV4_OK)
		return result;
	if (!day_key(day, secret, claim->date, claim->region, claim->signing_key))
		return PST_SIGV4_WRONG_SIGNATURE;
	rc = signature_make(req, &terms, signature);
	if (!rc && !pst_compare_secret(signature, claim->signature, 64))
		return PST_SIGV4_OK;
	explicit_bzero(claim->signing_key, sizeof(claim->signing_key));
	return rc == -EINVAL ? PST_SIGV4_MALFORMED : PST_SIGV4_WRONG_SIGNATURE;
}

const char *pst_sigv4_code(enum pst_sigv4_result result)
{
	switch (result) {
	case PST_SIGV4_OK:
		return "";
	case PST_SIGV4_MALFORMED:
	case PST_SIGV4_WRONG_REGION:
		return "AuthorizationHeaderMalformed";
	case PST_SIGV4_OLD_VERSION:
		return "InvalidRequest";
	case PST_SIGV4_SKEWED:
		return "RequestTimeTooSkewed";
	case PST_SIGV4_WRONG_SIGNATURE:
		return "SignatureDoesNotMatch";
	case PST_SIGV4_UNKNOWN_KEY:
		return "InvalidAccessKeyId";
	default:
		return "AccessDenied";
	}
}
