// SPDX-License-Identifier: Apache-2.0
/* What this compiler made of the UAPI header, for bindings that state it a second time. */
#include "core.h"

#define FIELD(type, field)                                                                        \
	{                                                                                         \
#type "." #field, offsetof(struct type, field), sizeof(((struct type *)0)->field) \
	}
#define SIZE(type)                                      \
	{                                               \
		"sizeof " #type, 0, sizeof(struct type) \
	}

static const struct hmb_layout_entry layout[] = {
	SIZE(hmb_ring_hdr),
	FIELD(hmb_ring_hdr, magic),
	FIELD(hmb_ring_hdr, version),
	FIELD(hmb_ring_hdr, ring_size),
	FIELD(hmb_ring_hdr, record_area_off),
	FIELD(hmb_ring_hdr, head),
	FIELD(hmb_ring_hdr, tail),
	FIELD(hmb_ring_hdr, flags),
	FIELD(hmb_ring_hdr, reserved0),
	FIELD(hmb_ring_hdr, reserved1),
	FIELD(hmb_ring_hdr, reserved2),
	FIELD(hmb_ring_hdr, reserved3),
	SIZE(hmb_record_hdr),
	FIELD(hmb_record_hdr, magic),
	FIELD(hmb_record_hdr, seq),
	FIELD(hmb_record_hdr, ts_ns),
	FIELD(hmb_record_hdr, opcode),
	FIELD(hmb_record_hdr, cpu),
	FIELD(hmb_record_hdr, flags),
	FIELD(hmb_record_hdr, payload_len),
	FIELD(hmb_record_hdr, reserved0),
	FIELD(hmb_record_hdr, reserved1),
	SIZE(nvme_hmb_trace_info),
	SIZE(nvme_hmb_trace_advance),
	SIZE(hmb_event),
};

int hmb_layout(uint32_t index, struct hmb_layout_entry *entry)
{
	if (index >= sizeof(layout) / sizeof(layout[0]))
		return -ENOENT;
	*entry = layout[index];
	return 0;
}
