// SPDX-License-Identifier: Apache-2.0
/* The library carries its own interface: a binding can never read another version's. */
extern const char hmb_api_text[];

/* In the order of core.h: what is used is declared before. */
__asm__(".pushsection .rodata\n"
	".global hmb_api_text\n"
	"hmb_api_text:\n"
	".incbin \"api/layout.h\"\n"
	".incbin \"api/ring.h\"\n"
	".incbin \"api/journal.h\"\n"
	".incbin \"api/collect.h\"\n"
	".incbin \"api/spool.h\"\n"
	".incbin \"api/collector.h\"\n"
	".incbin \"api/dump.h\"\n"
	".incbin \"api/render.h\"\n"
	".incbin \"api/fnv.h\"\n"
	".incbin \"api/pairing.h\"\n"
	".incbin \"api/pccx.h\"\n"
	".byte 0\n"
	".popsection\n");
