/* SPDX-License-Identifier: Apache-2.0 */
/* Which bytes are UTF-8. */
#ifndef HMB_UTF8_H
#define HMB_UTF8_H

#include <stdint.h>

/* Length of the valid UTF-8 sequence at text, or 0. */
static inline uint64_t hmb_utf8_length(const uint8_t *text, uint64_t left)
{
	uint8_t first = text[0];
	uint64_t length = first < 0x80	 ? 1
			  : first < 0xc2 ? 0
			  : first < 0xe0 ? 2
			  : first < 0xf0 ? 3
			  : first < 0xf5 ? 4
					 : 0;

	if (length == 0 || length > left)
		return 0;
	for (uint64_t i = 1; i < length; i++) {
		if ((text[i] & 0xc0) != 0x80)
			return 0;
	}
	if ((first == 0xe0 && text[1] < 0xa0) || (first == 0xed && text[1] > 0x9f) ||
	    (first == 0xf0 && text[1] < 0x90) || (first == 0xf4 && text[1] > 0x8f))
		return 0;
	return length;
}

#endif
