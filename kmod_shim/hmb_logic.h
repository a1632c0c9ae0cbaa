/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What a region holds, judged from one copy of its header.  Pure functions:
 * tests/unit/test_kmod_logic.py compiles this file in user space.
 */
#ifndef HMB_LOGIC_H
#define HMB_LOGIC_H

#include <linux/hmb_trace.h>

/* total_mmap_size is 32 bits wide: the largest power of two that leaves room for the header. */
#define HMB_RING_SIZE_MAX 0x80000000u

/* One copy of the ring header, in CPU byte order. */
struct hmb_snapshot {
	__u32 magic;
	__u32 version;
	__u32 ring_size;
	__u32 record_area_off;
	__u32 flags;
	__u64 head;
	__u64 tail;
};

/* What the module remembers between two looks at a header. */
struct hmb_watch {
	__u64 head;
	__u64 overflows; /* rising edges of OVERFLOWED */
	__u64 generation; /* re-initialisations */
	__u32 ring_size;
	__u8 seen; /* a ring was here once */
	__u8 present; /* and at the last look */
	__u8 overflowed;
};

static inline int hmb_is_ring(const struct hmb_snapshot *s, __u64 region_size)
{
	return s->magic == HMB_RING_MAGIC && s->version != 0 &&
	       s->record_area_off == HMB_RECORD_AREA_OFF && s->ring_size >= HMB_RING_SIZE_MIN &&
	       s->ring_size <= HMB_RING_SIZE_MAX && !(s->ring_size & (s->ring_size - 1)) &&
	       (__u64)s->record_area_off + s->ring_size <= region_size;
}

/* The largest ring that a region of this size can hold; 0 if none fits. */
static inline __u32 hmb_largest_ring(__u64 region_size)
{
	__u64 ring = HMB_RING_SIZE_MAX;

	while (ring >= HMB_RING_SIZE_MIN && HMB_RECORD_AREA_OFF + ring > region_size)
		ring >>= 1;
	return ring >= HMB_RING_SIZE_MIN ? (__u32)ring : 0;
}

/*
 * GET_INFO: the ring that is there, or the largest that could be: then the
 * consumer maps that, and refuses the header with its own words.
 */
static inline void hmb_geometry(const struct hmb_snapshot *s, __u64 region_size,
				struct nvme_hmb_trace_info *info)
{
	int ring = hmb_is_ring(s, region_size);

	*info = (struct nvme_hmb_trace_info){ .size = sizeof(*info),
					      .flags = ring ? NVME_HMB_TRACE_INFO_RING : 0 };
	info->abi_version = ring ? s->version : HMB_TRACE_ABI_VERSION;
	info->ring_size = ring ? s->ring_size : hmb_largest_ring(region_size);
	info->record_area_off = HMB_RECORD_AREA_OFF;
	info->total_mmap_size = HMB_RECORD_AREA_OFF + info->ring_size;
}

/* Is there something to read? */
static inline int hmb_is_ready(const struct hmb_snapshot *s, __u64 region_size)
{
	return hmb_is_ring(s, region_size) && s->head != s->tail;
}

/* Bytes that wait for the consumer; 0 without a ring, ring_size when the cursors are invalid. */
static inline __u32 hmb_fill(const struct hmb_snapshot *s, __u64 region_size)
{
	__u64 fill = s->head - s->tail;

	if (!hmb_is_ring(s, region_size))
		return 0;
	return fill > s->ring_size ? s->ring_size : (__u32)fill;
}

/* A head that went back, another size, a header that came back: a new ring. */
static inline int hmb_is_new_ring(const struct hmb_watch *w, const struct hmb_snapshot *s)
{
	return w->seen &&
	       (!w->present || s->ring_size != w->ring_size || (__s64)(s->head - w->head) < 0);
}

static inline void hmb_observe(struct hmb_watch *w, const struct hmb_snapshot *s, __u64 region_size)
{
	__u8 overflowed = !!(s->flags & HMB_RING_FLAG_OVERFLOWED);

	if (!hmb_is_ring(s, region_size)) {
		w->present = 0;
		return;
	}
	if (hmb_is_new_ring(w, s)) {
		w->generation++;
		w->overflowed = 0;
	}
	w->overflows += overflowed && !w->overflowed;
	w->overflowed = overflowed;
	w->head = s->head;
	w->ring_size = s->ring_size;
	w->seen = 1;
	w->present = 1;
}

enum hmb_advance {
	HMB_ADVANCE_OK,
	HMB_ADVANCE_STALE, /* tail is not what the caller expects */
	HMB_ADVANCE_INVALID, /* misaligned, backward, or beyond head */
};

/* Only forward, only to head: what is stored keeps head - tail <= ring_size, or makes it so. */
static inline enum hmb_advance hmb_judge_advance(const struct hmb_snapshot *s,
						 const struct nvme_hmb_trace_advance *arg)
{
	__u64 unread = s->head - s->tail;

	if (s->tail != arg->expected)
		return HMB_ADVANCE_STALE;
	if (arg->new_tail % HMB_RECORD_ALIGN || s->head - arg->new_tail > s->ring_size)
		return HMB_ADVANCE_INVALID;
	if (unread <= s->ring_size && arg->new_tail - s->tail > unread)
		return HMB_ADVANCE_INVALID;
	return HMB_ADVANCE_OK;
}

#endif
