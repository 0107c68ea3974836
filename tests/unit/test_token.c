/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the parser and the printer of tokens (src/s3/token.c), by which a client of S3 over RDMA
 * tells a server how to access its memory: each syntax with the values of its fields, texts that
 * must be refused, every truncation and every changed character of a valid token, and random tokens
 * that must survive printing and parsing.
 */
#include "test.h"

#include <errno.h>

#include "s3/token.h"

#define CAP "00112233445566778899aabbccddeeff"
#define DC                                                                  \
	"00007f0012345000:00c00000:00001234:0001:00abcd:1:fe80000000000000" \
	"0a0b0c0dfffe0e0f"
#define OFI "7f0012345000:c00000:ofi1:verbs;ofi_rxm:020012340a00000100ff:deadbeef"
#define RC "123:1000:rc1:192.0.2.7:4791:" CAP ":0000beef"
#define TCP "1a2b:1000:tcp1:192.0.2.7:4791:" CAP
#define TCP6 "1a2b:1000:tcp1:[2001:db8::7]:65535:" CAP
#define SHM "1a2b:200000:shm1:ffeeddccbbaa99887766554433221100:m:4f-x_Z:" CAP
#define SHM_FILE "1a2b:200000:shm1:ffeeddccbbaa99887766554433221100:f:4f-x_Z:" CAP
/* A token of hipobj-rc-v2: reliable connection, queue pair 0x11223344, key 0x55667788, port 1, LID
 * 2. */
#define HIPOBJ                             \
	"01"                               \
	"44332211"                         \
	"fe800000000000000a0b0c0dfffe0e0f" \
	"88776655"                         \
	"0050341200"                       \
	"7f0000"                           \
	"0000c00000000000"                 \
	"01"                               \
	"0200"

static int parse(const char *text, struct pst_token *out)
{
	return pst_token_parse(text, strlen(text), out);
}

static void expect_round_trip(const char *text)
{
	char out[PST_TOKEN_MAX + 1];
	struct pst_token t;

	if (parse(text, &t))
		fail_msg("refused: %s", text);
	assert_int_equal(pst_token_print(&t, out), strlen(text));
	assert_string_equal(out, text);
}

static void prints_what_it_parsed(void **state)
{
	static const char *const texts[] = {DC, OFI, RC, TCP, TCP6, SHM, SHM_FILE, HIPOBJ};

	(void)state;
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		expect_round_trip(texts[i]);
}

static void reads_each_field(void **state)
{
	static const unsigned char gid[16] = {0xfe, 0x80, 0,	0,    0,    0,	  0,	0,
					      0x0a, 0x0b, 0x0c, 0x0d, 0xff, 0xfe, 0x0e, 0x0f};
	struct pst_token t;

	(void)state;
	assert_int_equal(strlen(DC), 81);
	assert_int_equal(parse(DC, &t), 0);
	assert_int_equal(t.kind, PST_TOKEN_DC_V1);
	assert_int_equal(t.base, 0x7f0012345000);
	assert_int_equal(t.size, 0xc00000);
	assert_int_equal(t.dc.rkey, 0x1234);
	assert_int_equal(t.dc.lid, 1);
	assert_int_equal(t.dc.dct, 0xabcd);
	assert_true(t.dc.has_gid);
	assert_memory_equal(t.dc.gid, gid, 16);

	assert_int_equal(parse(OFI, &t), 0);
	assert_int_equal(t.kind, PST_TOKEN_OFI1);
	assert_string_equal(t.ofi.provider, "verbs;ofi_rxm");
	assert_int_equal(t.ofi.name_len, 10);
	assert_int_equal(t.ofi.name[8], 0);
	assert_int_equal(t.ofi.name[9], 0xff);
	assert_int_equal(t.ofi.key, 0xdeadbeef);

	assert_int_equal(parse(HIPOBJ, &t), 0);
	assert_int_equal(t.kind, PST_TOKEN_HIPOBJ_RC_V2);
	assert_int_equal(t.hipobj.transport, 1);
	assert_int_equal(t.hipobj.qpn, 0x11223344);
	assert_int_equal(t.hipobj.rkey, 0x55667788);
	assert_int_equal(t.base, 0x7f0012345000);
	assert_int_equal(t.size, 0xc00000);
	assert_int_equal(t.hipobj.port, 1);
	assert_int_equal(t.hipobj.lid, 2);
	assert_memory_equal(t.hipobj.gid, gid, 16);

	assert_int_equal(parse(RC, &t), 0);
	assert_int_equal(t.rc.rkey, 0xbeef);
	assert_int_equal(t.rc.conn[1], 0x11);
	assert_string_equal(t.rc.at.address, "192.0.2.7");
	assert_int_equal(t.rc.at.port, 4791);

	assert_int_equal(parse(TCP6, &t), 0);
	assert_int_equal(t.kind, PST_TOKEN_TCP1);
	assert_true(t.tcp.at.v6);
	assert_string_equal(t.tcp.at.address, "2001:db8::7");
	assert_int_equal(t.tcp.at.port, 65535);
	assert_int_equal(t.tcp.cap[15], 0xff);

	assert_int_equal(parse(SHM, &t), 0);
	assert_int_equal(t.kind, PST_TOKEN_SHM1);
	assert_false(t.shm.cuda);
	assert_string_equal(t.shm.handle, "4f-x_Z");
	assert_int_equal(t.shm.host[0], 0xff);
	assert_int_equal(t.shm.cap[1], 0x11);
	assert_false(t.shm.file);

	assert_int_equal(parse(SHM_FILE, &t), 0);
	assert_true(t.shm.file);
	assert_false(t.shm.cuda);
}

static void accepts_variants(void **state)
{
	char out[PST_TOKEN_MAX + 1];
	struct pst_token t;

	(void)state;
	/* Older clients append address and length to a token of DC_V1. A longer length there must
	 * not enlarge the memory range to which the token gives access. */
	assert_int_equal(parse(DC ":00007f0012345000:00000000ffffffff", &t), 0);
	assert_int_equal(t.size, 0xc00000);
	assert_int_equal(pst_token_print(&t, out), 81);
	assert_string_equal(out, DC);
	assert_int_equal(parse(" \t" TCP " ; ", &t), 0);
	pst_token_print(&t, out);
	assert_string_equal(out, TCP);
	assert_int_equal(
		parse("1A2B:1000:tcp1:192.0.2.7:4791:00112233445566778899AABBCCDDEEFF", &t), 0);
	pst_token_print(&t, out);
	assert_string_equal(out, TCP);
}

static void refuses_malformed_texts(void **state)
{
	static const char *const texts[] = {
		"",
		";",
		" ",
		":",
		"x",
		TCP ";;",
		TCP " x",
		TCP ":",
		"x" TCP,
		DC ":",
		DC ":00",
		DC ":00007f0012345000",
		DC ":00007f0012345000:00000000ffffffff:0",
		"0:0:ofi2:tcp:02:1",
		"0:0:ofi1::02:1",
		"0:0:ofi1:tcp::1",
		"0:0:ofi1:tcp:020:1",
		"0:0:ofi1:tcp:02:",
		"0:0:ofi1:t p:02:1",
		"0:0:tcp1:example.org:80:" CAP,
		"0:0:tcp1:127.0.0.1:0:" CAP,
		"0:0:tcp1:127.0.0.1:65536:" CAP,
		"0:0:tcp1:127.0.0.1:+80:" CAP,
		"0:0:tcp1:[127.0.0.1]:80:" CAP,
		"0:0:tcp1:[::1:80:" CAP,
		"0:0:tcp1:[::1]80:" CAP,
		"0:0:shm1:ffeeddccbbaa99887766554433221100:x:h:" CAP,
		"0:0:shm1:ffeeddccbbaa99887766554433221100:m::" CAP,
		"0:0:shm1:ffeeddccbbaa99887766554433221100:m:../h:" CAP,
		"0:0:rc1:127.0.0.1:80:" CAP ":beef",
		"0:0:rc1:127.0.0.1:80:" CAP ":00000beef",
		"0:0:rc1:127.0.0.1:80:" CAP "0000beef",
		"0:0:rc1:127.0.0.1:0:" CAP ":0000beef",
		"0:0:rc1:example.org:80:" CAP ":0000beef",
		"0:0:rc1:" CAP ":0000beef",
		/* The memory range of the token would end beyond the address space. */
		"ffffffffffffffff:2:tcp1:127.0.0.1:80:" CAP,
		"10000000000000000:1:tcp1:127.0.0.1:80:" CAP,
		/* The flag of the GID is neither 0 nor 1, or the transport is neither DC nor RC. */
		"00007f0012345000:00c00000:00001234:0001:00abcd:2:fe800000000000000a0b0c0dfffe0e0f",
		"02"
		"44332211"
		"fe800000000000000a0b0c0dfffe0e0f"
		"88776655"
		"0050341200"
		"7f0000"
		"0000c00000000000"
		"01"
		"0200",
	};
	struct pst_token t = {.base = 7};

	(void)state;
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (parse(texts[i], &t) != -EBADMSG)
			fail_msg("accepted as %s: %s", pst_token_name(t.kind), texts[i]);
	assert_int_equal(t.base, 7);
	assert_int_equal(pst_token_parse(TCP "\0", strlen(TCP) + 1, &t), -EBADMSG);
}

static void refuses_more_than_512_characters(void **state)
{
	char text[PST_TOKEN_MAX + 2];
	struct pst_token t;

	(void)state;
	memset(text, ' ', sizeof(text));
	memcpy(text, TCP, strlen(TCP));
	assert_int_equal(pst_token_parse(text, PST_TOKEN_MAX, &t), 0);
	assert_int_equal(pst_token_parse(text, PST_TOKEN_MAX + 1, &t), -EBADMSG);
}

/* Removes the leading zeros of a number. If all digits are zeros, keeps the last one. */
static void zeros_remove(char *number)
{
	size_t zeros = strspn(number, "0");

	if (zeros && (!number[zeros] || !strchr("0123456789abcdef", number[zeros])))
		zeros--;
	memmove(number, number + zeros, strlen(number + zeros) + 1);
}

/* Writes a valid token as the printer does: without blanks and a semicolon at its ends, and with
 * the shortest form of the numbers whose length is not fixed. */
static void canonical(const char *text, size_t len, enum pst_token_kind kind, char *out)
{
	size_t blanks = strspn(text, " ");
	char *field;

	while (text[len - 1] == ' ')
		len--;
	len -= text[len - 1] == ';';
	while (text[len - 1] == ' ')
		len--;
	memcpy(out, text + blanks, len - blanks);
	out[len - blanks] = '\0';
	if (kind == PST_TOKEN_DC_V1 || kind == PST_TOKEN_HIPOBJ_RC_V2)
		return;
	zeros_remove(out);
	zeros_remove(strchr(out, ':') + 1);
	field = strrchr(out, ':') + 1;
	if (kind == PST_TOKEN_OFI1)
		zeros_remove(field);
	/* The port comes before the last field of tcp1, and before the last two fields of rc1. */
	for (int i = kind == PST_TOKEN_TCP1 ? 1 : kind == PST_TOKEN_RC1 ? 2 : 0; i; i--)
		for (field--; field[-1] != ':';)
			field--;
	if (kind == PST_TOKEN_TCP1 || kind == PST_TOKEN_RC1)
		zeros_remove(field);
}

/* Parses a damaged token. If the parser accepts it, the printer must write the token in its
 * canonical form (see canonical()). Returns whether the parser accepted it. */
static bool damaged_parse(const char *text, size_t len)
{
	/* Uses a block of exactly the text's length, so that a sanitizer detects a read beyond its
	 * end. */
	char *copy = malloc(len ? len : 1), wanted[PST_TOKEN_MAX + 1], out[PST_TOKEN_MAX + 1];
	struct pst_token t;
	bool accepted;

	assert_non_null(copy);
	memcpy(copy, text, len);
	accepted = !pst_token_parse(copy, len, &t);
	free(copy);
	if (!accepted)
		return false;
	canonical(text, len, t.kind, wanted);
	if (pst_token_print(&t, out) != (int)strlen(wanted) || strcmp(out, wanted))
		fail_msg("'%.*s' prints as '%s', expected '%s'", (int)len, text, out, wanted);
	return true;
}

/* Truncates a token, or changes one of its characters. The parser must refuse the result, or must
 * read it so that the printer writes the same token in its canonical form. */
static void never_misreads_a_damaged_token(void **state)
{
	static const char *const texts[] = {DC, OFI, RC, TCP, TCP6, SHM, HIPOBJ};
	static const char chars[] = "0:;[]. \nzg-\x7f";
	char text[PST_TOKEN_MAX + 1];
	unsigned changed = 0, cut = 0;

	(void)state;
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		size_t len = strlen(texts[i]);

		for (size_t at = 0; at < len; at++) {
			for (size_t c = 0; c < sizeof(chars); c++) {
				memcpy(text, texts[i], len + 1);
				text[at] = chars[c];
				if (chars[c] != texts[i][at])
					changed += damaged_parse(text, len);
			}
			cut += damaged_parse(texts[i], at);
			cut += at && damaged_parse(texts[i] + at, len - at);
		}
	}
	print_message("# accepted: %u tokens with another character, %u parts\n", changed, cut);
	/* Some changes leave a valid token, such as another digit of a capability. */
	assert_true(changed > 100);
	/* A token without some first digits of its base address is still valid: 11 texts of OFI, 3
	 * each of TCP, TCP6 and SHM, and 2 of RC. So is a token of OFI without some last digits of
	 * its key: 7 texts. */
	assert_int_equal(cut, 29);
}

static void random_place(struct pst_token_place *place, uint64_t *seed)
{
	place->v6 = test_random(seed) & 1;
	place->port |= 1;
	snprintf(place->address, sizeof(place->address), place->v6 ? "2001:db8::%x" : "10.0.0.%u",
		 (unsigned)(1 + test_random(seed) % 250));
}

/* Fills a token of kind `kind` with random values that its syntax can express. */
static void random_token(struct pst_token *t, enum pst_token_kind kind, uint64_t *seed)
{
	unsigned char *bytes = (unsigned char *)t;

	for (size_t i = 0; i < sizeof(*t); i++)
		bytes[i] = (unsigned char)test_random(seed);
	t->kind = kind;
	t->base = test_random(seed) >> (test_random(seed) % 64);
	t->size = test_random(seed) >> (33 + test_random(seed) % 31);
	if (t->base > UINT64_MAX - t->size)
		t->base = 0;
	switch (kind) {
	case PST_TOKEN_DC_V1:
		t->dc.dct &= 0xffffff;
		t->dc.has_gid = test_random(seed) & 1;
		break;
	case PST_TOKEN_HIPOBJ_RC_V2:
		t->hipobj.transport &= 1;
		break;
	case PST_TOKEN_OFI1:
		snprintf(t->ofi.provider, sizeof(t->ofi.provider), "p%llx;x",
			 (unsigned long long)test_random(seed));
		t->ofi.name_len = 1 + test_random(seed) % PST_TOKEN_NAME_MAX;
		break;
	case PST_TOKEN_TCP1:
		random_place(&t->tcp.at, seed);
		break;
	case PST_TOKEN_RC1:
		random_place(&t->rc.at, seed);
		break;
	case PST_TOKEN_SHM1:
		t->shm.file = test_random(seed) & 1;
		t->shm.cuda = !t->shm.file && test_random(seed) & 1;
		snprintf(t->shm.handle, sizeof(t->shm.handle), "%llx",
			 (unsigned long long)test_random(seed));
		break;
	default:
		break;
	}
}

static void random_tokens_survive(void **state)
{
	uint64_t seed = test_seed(16);

	(void)state;
	for (unsigned i = 0; i < 20000; i++) {
		char first[PST_TOKEN_MAX + 1], second[PST_TOKEN_MAX + 1];
		struct pst_token made, parsed;
		int len;

		random_token(&made, i % PST_TOKEN_KINDS, &seed);
		len = pst_token_print(&made, first);
		if (len <= 0 || pst_token_parse(first, (size_t)len, &parsed))
			fail_msg("token %u of kind %s does not survive: %s", i,
				 pst_token_name(made.kind), len > 0 ? first : "not printed");
		assert_int_equal(parsed.kind, made.kind);
		assert_int_equal(parsed.base, made.base);
		assert_int_equal(parsed.size, made.size);
		assert_int_equal(pst_token_print(&parsed, second), len);
		assert_string_equal(second, first);
	}
}

static void printer_refuses_invalid_values(void **state)
{
	char out[PST_TOKEN_MAX + 1];
	struct pst_token t;

	(void)state;
	assert_int_equal(parse(DC, &t), 0);
	t.size = UINT64_C(1) << 32;
	assert_int_equal(pst_token_print(&t, out), -EINVAL);
	assert_int_equal(parse(TCP, &t), 0);
	t.tcp.at.v6 = true;
	assert_int_equal(pst_token_print(&t, out), -EINVAL);
	assert_int_equal(parse(SHM_FILE, &t), 0);
	t.shm.cuda = true;
	assert_int_equal(pst_token_print(&t, out), -EINVAL);
	t.kind = PST_TOKEN_KINDS;
	assert_int_equal(pst_token_print(&t, out), -EINVAL);
	assert_string_equal(pst_token_name(t.kind), "unknown");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(prints_what_it_parsed),
		cmocka_unit_test(reads_each_field),
		cmocka_unit_test(accepts_variants),
		cmocka_unit_test(refuses_malformed_texts),
		cmocka_unit_test(refuses_more_than_512_characters),
		cmocka_unit_test(never_misreads_a_damaged_token),
		cmocka_unit_test(random_tokens_survive),
		cmocka_unit_test(printer_refuses_invalid_values),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
