// SPDX-License-Identifier: Apache-2.0
/* The library carries its own sim_api.h: a binding can never read another version's. */
extern const char hmb_sim_api_text[];

__asm__(".pushsection .rodata\n"
	".global hmb_sim_api_text\n"
	"hmb_sim_api_text:\n"
	".incbin \"sim_api.h\"\n"
	".byte 0\n"
	".popsection\n");
