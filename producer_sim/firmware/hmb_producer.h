/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference producer: what SSD firmware links to write trace records into
 * a ring in host memory.  Freestanding: no libc, no malloc, no division.
 *
 * One producer per ring and no locking inside: firmware with several cores
 * gives the ring to one of them, or holds a lock from begin to commit.
 */
#ifndef HMB_PRODUCER_H
#define HMB_PRODUCER_H

#include <linux/hmb_trace.h>

/* Plain data, owned by the producer's core; the host never sees it. */
struct hmb_producer {
	struct hmb_ring_hdr *hdr;
	__u8 *area;
	__u64 size; /* bytes of the record area */
	__u64 head; /* next byte to write; the host sees it after publish */
	__u64 tail; /* as last read: host memory is slow to read, so only when space looks short */
	__u64 record; /* cursor of the record that begin placed */
	__u64 dropped; /* records: no room */
	__u64 refused; /* records: payload_len over the limit, a bug of the caller */
	__u64 markers; /* wrap markers written, partial ones included */
	__u32 seq; /* of the next record */
	__u32 last_seq; /* of the last record that was finished */
	__u32 flags; /* what hdr->flags holds: nobody else writes it */
	__u32 need; /* bytes of the record between begin and end */
	__u32 drops_keep_seq; /* 1: a dropped record leaves no gap in seq (loss of unknown extent)
	                       */
};

/*
 * Write a fresh ring header at base and start with an empty ring at cursor.
 * `magic` is stored last, so that a host never reads half a header.  Returns 0,
 * or -1 and touches nothing: base not 8-byte aligned, ring_size not a power of
 * two of at least 32, cursor not a multiple of 8.
 */
int hmb_producer_init(struct hmb_producer *p, void *base, __u32 ring_size, __u64 cursor, __u32 seq);

/*
 * Place the next record.  Returns where its payload_len bytes go (8-byte
 * aligned, contiguous, padding already zero), or a null pointer: the record was
 * dropped and the host told (HMB_RING_FLAG_OVERFLOWED).  Nothing is visible
 * before hmb_producer_commit().
 */
void *hmb_producer_begin(struct hmb_producer *p, __u64 ts_ns, __u16 opcode, __u8 cpu, __u8 flags,
			 __u32 payload_len);

/* Finish the record that begin placed, without showing it yet: more may follow. */
void hmb_producer_end(struct hmb_producer *p);

/* Show everything that was finished: one release store of head. */
void hmb_producer_publish(struct hmb_producer *p);

/* end and publish. */
void hmb_producer_commit(struct hmb_producer *p);

/*
 * begin, copy, commit.  A payload over HMB_RECORD_MAX_PAYLOAD is clipped and
 * flagged HMB_REC_FLAG_TRUNCATED.  Returns 0, or -1 when the record was dropped.
 */
int hmb_producer_emit(struct hmb_producer *p, __u64 ts_ns, __u16 opcode, __u8 cpu,
		      const void *payload, __u32 payload_len);

/* 1 if a record of this size can be placed now; reads tail when it has to. */
int hmb_producer_has_room(struct hmb_producer *p, __u64 ts_ns, __u32 payload_len);

/* Bytes from head to the end of the lap. */
__u64 hmb_producer_left(const struct hmb_producer *p);

/* 1 if bytes more fit before head meets tail; reads tail when it has to. */
int hmb_producer_fits(struct hmb_producer *p, __u64 bytes);

/*
 * Write a wrap marker at head, as much of its 32 bytes as the lap has left, and
 * move to the lap's end.  begin does this by itself.
 */
void hmb_producer_wrap(struct hmb_producer *p, __u32 seq, __u64 ts_ns);

/* What begin does when there is no room. */
void hmb_producer_drop(struct hmb_producer *p);

/* Set or clear HMB_RING_FLAG_* bits, after everything published so far. */
void hmb_producer_set_flags(struct hmb_producer *p, __u32 set, __u32 clear);

#endif
