// SPDX-License-Identifier: Apache-2.0
/* Every fast FNV-1a that runs here against the byte loop: any length, place, state, chunks (SPEC P1). */
#include <stdio.h>

#include "check.h"
#include "fnv.h"

enum { MOST = 20000, CASES = 2000 };

static uint64_t dice_state = 1;

static uint64_t dice(void)
{
	dice_state ^= dice_state << 13;
	dice_state ^= dice_state >> 7;
	dice_state ^= dice_state << 17;
	return dice_state;
}

static void check_by(const struct hmb_fnv_variant *variant, const uint8_t *data, uint64_t n,
		     uint64_t state)
{
	uint64_t expected = hmb_fnv1a_64_plain(data, n, state), cut = n ? dice() % n : 0;

	CHECK_EQUAL(hmb_fnv_by(variant, data, n, state), expected);
	state = hmb_fnv_by(variant, data, cut, state);
	CHECK_EQUAL(hmb_fnv_by(variant, data + cut, n - cut, state), expected);
}

static void check_all(const uint8_t *data, uint64_t n, uint64_t state)
{
	CHECK_EQUAL(hmb_fnv1a_64(data, n, state), hmb_fnv1a_64_plain(data, n, state));
	check_by(NULL, data, n, state);
	for (const struct hmb_fnv_variant *v = hmb_fnv_variants; v->name; v++)
		if (v->supported())
			check_by(v, data, n, state);
}

int main(void)
{
	for (int i = 0; i < CASES; i++) {
		uint64_t n = dice() % MOST, offset = dice() % 64, fill = dice();
		/* of the exact size, so that one byte beyond is an error */
		uint8_t *data = malloc(n + offset + 1);

		for (uint64_t k = 0; k < n + offset; k++)
			data[k] = (uint8_t)(i % 8 ? dice() : fill);
		data[n + offset] = 0;
		check_all(data + offset, n, dice());
		free(data);
	}
	for (const struct hmb_fnv_variant *v = hmb_fnv_variants; v->name; v++)
		printf("%s: %s\n", v->name, v->supported() ? "checked" : "not on this processor");
	return 0;
}
