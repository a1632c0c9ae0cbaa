// SPDX-License-Identifier: Apache-2.0
/* The reference producer (docs/format.md: R2 cursors, R3 wrap). */
#include "hmb_producer.h"
#include "hmb_producer_port.h"

#define HDR_WORDS (HMB_RECORD_HDR_SIZE / 8)

static __u32 record_size(__u32 payload_len)
{
	return HMB_RECORD_HDR_SIZE + ((payload_len + 7) & ~7u);
}

static __u8 *at(const struct hmb_producer *p, __u64 cursor)
{
	return p->area + (cursor & (p->size - 1));
}

/* A record header as the four 8-byte words that go over the bus. */
static void pack_header(__u64 words[HDR_WORDS], __u32 seq, __u64 ts_ns, __u64 opcode_to_len)
{
	words[0] = HMB_RECORD_MAGIC | (__u64)seq << 32;
	words[1] = ts_ns;
	words[2] = opcode_to_len;
	words[3] = 0;
}

static void put_words(__u8 *to, const __u64 *words, __u32 count)
{
	for (__u32 i = 0; i < count; i++)
		hmb_port_store64(to + 8 * i, words[i]);
}

static int is_valid_geometry(const void *base, __u32 ring_size, __u64 cursor)
{
	return !((__UINTPTR_TYPE__)base & 7) && ring_size >= HMB_RING_SIZE_MIN &&
	       !(ring_size & (ring_size - 1)) && !(cursor & 7);
}

static void write_header(struct hmb_ring_hdr *hdr, __u32 ring_size, __u64 cursor)
{
	/* Not a ring while it is being written. */
	hmb_port_store32(&hdr->magic, 0);
	hmb_port_wmb();
	hmb_port_store32(&hdr->version, HMB_TRACE_ABI_VERSION);
	hmb_port_store32(&hdr->ring_size, ring_size);
	hmb_port_store32(&hdr->record_area_off, HMB_RECORD_AREA_OFF);
	hmb_port_store64(&hdr->head, cursor);
	hmb_port_store64(&hdr->tail, cursor);
	hmb_port_store64(&hdr->flags, 0); /* and reserved0 */
	hmb_port_store64(&hdr->reserved1, 0);
	hmb_port_store64(&hdr->reserved2, 0);
	hmb_port_store64(&hdr->reserved3, 0);
	hmb_port_wmb();
	hmb_port_store32(&hdr->magic, HMB_RING_MAGIC);
}

int hmb_producer_init(struct hmb_producer *p, void *base, __u32 ring_size, __u64 cursor, __u32 seq)
{
	if (!is_valid_geometry(base, ring_size, cursor))
		return -1;
	write_header(base, ring_size, cursor);
	p->hdr = base;
	p->area = (__u8 *)base + HMB_RECORD_AREA_OFF;
	p->size = ring_size;
	p->head = cursor;
	p->tail = cursor;
	p->record = cursor;
	p->dropped = 0;
	p->refused = 0;
	p->markers = 0;
	p->seq = seq;
	p->last_seq = seq;
	p->flags = 0;
	p->need = 0;
	p->drops_keep_seq = 0;
	return 0;
}

__u64 hmb_producer_left(const struct hmb_producer *p)
{
	return p->size - (p->head & (p->size - 1));
}

static int fits_before(const struct hmb_producer *p, __u64 tail, __u64 bytes)
{
	__u64 unread = p->head - tail;

	return unread <= p->size && bytes <= p->size - unread;
}

int hmb_producer_fits(struct hmb_producer *p, __u64 bytes)
{
	if (fits_before(p, p->tail, bytes))
		return 1;
	p->tail = hmb_port_load_acquire64(&p->hdr->tail);
	return fits_before(p, p->tail, bytes);
}

void hmb_producer_wrap(struct hmb_producer *p, __u32 seq, __u64 ts_ns)
{
	__u64 left = hmb_producer_left(p);
	__u32 count = left < HMB_RECORD_HDR_SIZE ? (__u32)left / 8 : HDR_WORDS;
	__u64 words[HDR_WORDS];

	pack_header(words, seq, ts_ns, (__u64)HMB_REC_FLAG_WRAP_MARKER << 24);
	put_words(at(p, p->head), words, count);
	p->head += left;
	p->markers++;
}

/* Bytes that a record must skip because it does not fit in what is left of the lap. */
static __u64 skip_for(const struct hmb_producer *p, __u32 need)
{
	__u64 left = hmb_producer_left(p);

	return need <= left ? 0 : left;
}

/*
 * In a ring smaller than two records, skip and record together may exceed the
 * whole ring: they can never go out in one publish.  The marker then goes ahead,
 * with the seq of the record before it, which no reader counts (R12): the
 * record that would follow may still be dropped.
 */
static void wrap_ahead(struct hmb_producer *p, __u64 ts_ns)
{
	if (!hmb_producer_fits(p, hmb_producer_left(p)))
		return;
	hmb_producer_wrap(p, p->last_seq, ts_ns);
	hmb_producer_publish(p);
}

int hmb_producer_has_room(struct hmb_producer *p, __u64 ts_ns, __u32 payload_len)
{
	__u32 need = record_size(payload_len);

	if (skip_for(p, need) + need > p->size)
		wrap_ahead(p, ts_ns);
	/* Skip and record together: a marker alone would promise what may not come. */
	return hmb_producer_fits(p, skip_for(p, need) + need);
}

void hmb_producer_set_flags(struct hmb_producer *p, __u32 set, __u32 clear)
{
	__u32 flags = (p->flags | set) & ~clear;

	if (flags == p->flags)
		return;
	p->flags = flags;
	/* After head: a host that sees FROZEN loads head once more and has it all. */
	hmb_port_wmb();
	hmb_port_store32(&p->hdr->flags, flags);
}

void hmb_producer_drop(struct hmb_producer *p)
{
	p->dropped++;
	if (!p->drops_keep_seq)
		p->seq++;
	hmb_producer_set_flags(p, HMB_RING_FLAG_OVERFLOWED, 0);
}

static void *place(struct hmb_producer *p, __u64 ts_ns, __u64 opcode_to_len, __u32 need)
{
	__u64 words[HDR_WORDS];
	__u8 *to;

	p->record = p->head;
	p->need = need;
	to = at(p, p->record);
	pack_header(words, p->seq, ts_ns, opcode_to_len);
	put_words(to, words, HDR_WORDS);
	if (need > HMB_RECORD_HDR_SIZE)
		hmb_port_store64(to + need - 8, 0); /* padding; the payload comes on top */
	return to + HMB_RECORD_HDR_SIZE;
}

void *hmb_producer_begin(struct hmb_producer *p, __u64 ts_ns, __u16 opcode, __u8 cpu, __u8 flags,
			 __u32 payload_len)
{
	__u32 need = record_size(payload_len);

	if (payload_len > HMB_RECORD_MAX_PAYLOAD) {
		p->refused++;
		return (void *)0;
	}
	if (!hmb_producer_has_room(p, ts_ns, payload_len)) {
		hmb_producer_drop(p);
		return (void *)0;
	}
	if (skip_for(p, need))
		hmb_producer_wrap(p, p->seq, ts_ns);
	return place(p, ts_ns,
		     opcode | (__u64)cpu << 16 | (__u64)flags << 24 | (__u64)payload_len << 32,
		     need);
}

void hmb_producer_end(struct hmb_producer *p)
{
	p->head = p->record + p->need;
	p->last_seq = p->seq++;
}

void hmb_producer_publish(struct hmb_producer *p)
{
	/* A': pairs with hmb_dma_rmb() behind the host's load of head. */
	hmb_port_store_release64(&p->hdr->head, p->head);
}

void hmb_producer_commit(struct hmb_producer *p)
{
	hmb_producer_end(p);
	hmb_producer_publish(p);
}

static __u64 load_upto8(const __u8 *from, __u32 count)
{
	__u64 word = 0;

	for (__u32 i = 0; i < count && i < 8; i++)
		word |= (__u64)from[i] << (8 * i);
	return word;
}

int hmb_producer_emit(struct hmb_producer *p, __u64 ts_ns, __u16 opcode, __u8 cpu,
		      const void *payload, __u32 payload_len)
{
	__u8 flags = payload_len > HMB_RECORD_MAX_PAYLOAD ? HMB_REC_FLAG_TRUNCATED : 0;
	__u32 len = flags ? HMB_RECORD_MAX_PAYLOAD : payload_len;
	__u8 *to = hmb_producer_begin(p, ts_ns, opcode, cpu, flags, len);

	if (!to)
		return -1;
	/* Whole words, the last one filled up with zeros: 8 bytes a bus write. */
	for (__u32 i = 0; i < len; i += 8)
		hmb_port_store64(to + i, load_upto8((const __u8 *)payload + i, len - i));
	hmb_producer_commit(p);
	return 0;
}
