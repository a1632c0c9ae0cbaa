// SPDX-License-Identifier: Apache-2.0
/* The library carries its own api.h: a binding can never read another version's. */
extern const char hmb_api_text[];

__asm__(".pushsection .rodata\n"
	".global hmb_api_text\n"
	"hmb_api_text:\n"
	".incbin \"api.h\"\n"
	".byte 0\n"
	".popsection\n");
