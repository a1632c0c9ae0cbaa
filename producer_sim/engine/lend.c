// SPDX-License-Identifier: Apache-2.0
/*
 * The ring in memory that a host lends and takes back: a drive's Host Memory
 * Buffer.  The engine keeps a copy of all that it wrote (the shadow), so that it
 * can tell what the host wrote there, and has a place to stand while there is no
 * buffer.
 */
#include "hmb_producer_port.h"
#include "hmb_slice.h"
#include "sim_core.h"

/* Copy what was finished since the last time; called before it is shown. */
void sim_shadow(struct hmb_sim *sim)
{
	struct hmb_producer *p = &sim->producer;
	uint64_t mask = p->size - 1;

	while (sim->shadow && sim->shadowed != p->head) {
		uint64_t at = sim->shadowed & mask;
		uint64_t n = p->head - sim->shadowed;

		if (n > p->size - at)
			n = p->size - at;
		memcpy(sim->shadow + HMB_RECORD_AREA_OFF + at, p->area + at, n);
		sim->shadowed += n;
	}
}

void hmb_sim_park(struct hmb_sim *sim)
{
	struct hmb_producer *p = &sim->producer;
	uint64_t tail = hmb_port_load_acquire64(&p->hdr->tail);

	if (!sim->shadow || p->hdr == (void *)sim->shadow)
		return;
	sim_shadow(sim);
	memcpy(sim->shadow, p->hdr, HMB_RECORD_AREA_OFF);
	p->hdr = (void *)sim->shadow;
	p->area = sim->shadow + HMB_RECORD_AREA_OFF;
	hmb_port_store64(&p->hdr->tail, tail);
}

int hmb_sim_settle(struct hmb_sim *sim, uint8_t *base, uint8_t *shadow, uint32_t ring_size,
		   uint32_t seq)
{
	struct hmb_producer *p = &sim->producer;
	uint32_t keep_seq = p->drops_keep_seq;

	if (ring_size != sim->config.ring_size) {
		sim->config.ring_size = ring_size;
		if (sim_log_begin(sim))
			return -ENOMEM;
	}
	if (sim->published)
		sim_next_epoch(sim);
	if (hmb_producer_init(p, base, ring_size, 0, seq))
		return -EINVAL;
	p->drops_keep_seq = keep_seq;
	sim->shadow = shadow;
	sim->shadowed = p->head;
	memcpy(shadow, base, HMB_RECORD_AREA_OFF + ring_size);
	return 0;
}

static int header_differs(const struct hmb_sim *sim)
{
	const struct hmb_producer *p = &sim->producer;
	const struct hmb_ring_hdr *seen = p->hdr;
	struct hmb_ring_hdr due = { .magic = HMB_RING_MAGIC,
				    .version = HMB_TRACE_ABI_VERSION,
				    .ring_size = (uint32_t)p->size,
				    .record_area_off = HMB_RECORD_AREA_OFF,
				    .head = p->head,
				    .tail = seen->tail,
				    .flags = p->flags };
	const uint8_t *a = (const uint8_t *)seen;
	const uint8_t *b = (const uint8_t *)&due;

	for (int i = 0; i < (int)sizeof(due); i++)
		if (a[i] != b[i])
			return i;
	return -1;
}

int64_t hmb_sim_foreign(struct hmb_sim *sim)
{
	const struct hmb_producer *p = &sim->producer;
	const uint8_t *mine = sim->shadow + HMB_RECORD_AREA_OFF;
	int at = header_differs(sim);

	sim_shadow(sim);
	if (at >= 0)
		return at;
	if (!memcmp(p->area, mine, p->size))
		return -1;
	for (uint64_t i = 0; i < p->size; i++)
		if (p->area[i] != mine[i])
			return (int64_t)(HMB_RECORD_AREA_OFF + i);
	return -1;
}

uint32_t hmb_sim_slice_ring(const uint8_t *mark, uint64_t slice_size, uint64_t dma_addr)
{
	struct hmb_slice_mark own;

	memcpy(&own, mark, sizeof(own));
	return hmb_slice_ring_size(&own, slice_size, dma_addr);
}

void hmb_sim_make_mark(uint8_t *mark, uint64_t slice_size, uint64_t dma_addr)
{
	struct hmb_slice_mark own;

	hmb_slice_make_mark(&own, slice_size, dma_addr);
	memcpy(mark, &own, sizeof(own));
}
