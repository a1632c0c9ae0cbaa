/* SPDX-License-Identifier: Apache-2.0 */
/* What the C compiler made of uapi/linux/hmb_trace.h. */

struct hmb_layout_entry {
	const char *name; /* "hmb_ring_hdr.head", or "sizeof hmb_ring_hdr" */
	uint32_t offset;
	uint32_t size;
};

/* The i-th entry; -ENOENT past the last. */
int hmb_layout(uint32_t index, struct hmb_layout_entry *entry);
