// SPDX-License-Identifier: Apache-2.0
/* The ring's header: attach checks (SPEC R1), cursors (R2), and the one store that we ever make. */
#include <string.h>
#include <sys/ioctl.h>

#include "barrier.h"
#include "core.h"

static const struct hmb_ring_hdr *header(const struct hmb_ring *ring)
{
	return (const struct hmb_ring_hdr *)ring->base;
}

static int refuse(struct hmb_refusal *refusal, enum hmb_field field, uint64_t found,
		  uint64_t expected)
{
	*refusal = (struct hmb_refusal){ .field = field, .found = found, .expected = expected };
	return -EINVAL;
}

static int is_power_of_two(uint64_t n)
{
	return n && !(n & (n - 1));
}

static int check_geometry(const struct hmb_ring_hdr *hdr, uint64_t region_size,
			  struct hmb_refusal *refusal)
{
	uint64_t needed = (uint64_t)hdr->record_area_off + hdr->ring_size;

	if (hdr->magic != HMB_RING_MAGIC)
		return refuse(refusal, HMB_FIELD_MAGIC, hdr->magic, HMB_RING_MAGIC);
	if (hdr->version == 0 || hdr->version > HMB_TRACE_ABI_VERSION)
		return refuse(refusal, HMB_FIELD_VERSION, hdr->version, HMB_TRACE_ABI_VERSION);
	if (!is_power_of_two(hdr->ring_size) || hdr->ring_size < HMB_RING_SIZE_MIN)
		return refuse(refusal, HMB_FIELD_RING_SIZE, hdr->ring_size, HMB_RING_SIZE_MIN);
	if (hdr->record_area_off != HMB_RECORD_AREA_OFF)
		return refuse(refusal, HMB_FIELD_RECORD_AREA_OFF, hdr->record_area_off,
			      HMB_RECORD_AREA_OFF);
	if (region_size < needed)
		return refuse(refusal, HMB_FIELD_REGION, region_size, needed);
	return 0;
}

int hmb_ring_attach(struct hmb_ring *ring, void *base, uint64_t region_size,
		    struct hmb_refusal *refusal)
{
	struct hmb_ring_hdr hdr;
	int err;

	if (region_size < sizeof(hdr))
		return refuse(refusal, HMB_FIELD_REGION, region_size, sizeof(hdr));
	/* One private copy: the device may rewrite the header while we judge it. */
	memcpy(&hdr, base, sizeof(hdr));
	err = check_geometry(&hdr, region_size, refusal);
	if (err)
		return err;
	*refusal = (struct hmb_refusal){ 0 };
	*ring = (struct hmb_ring){
		.base = base, .region_size = region_size, .ring_size = hdr.ring_size, .fd = -1
	};
	return 0;
}

static int advance_by_ioctl(const struct hmb_ring *ring, uint64_t expected, uint64_t new_tail)
{
	struct nvme_hmb_trace_advance arg = { .size = sizeof(arg),
					      .expected = expected,
					      .new_tail = new_tail };

	return ioctl(ring->fd, NVME_HMB_TRACE_ADVANCE_TAIL, &arg) ? -errno : 0;
}

void hmb_ring_use_ioctl(struct hmb_ring *ring, int fd)
{
	ring->fd = fd;
	ring->advance = advance_by_ioctl;
}

void hmb_ring_view(const struct hmb_ring *ring, struct hmb_ring_view *view)
{
	const struct hmb_ring_hdr *hdr = header(ring);

	view->head = hmb_load_acquire(&hdr->head);
	view->tail = __atomic_load_n(&hdr->tail, __ATOMIC_RELAXED);
	view->flags = __atomic_load_n(&hdr->flags, __ATOMIC_RELAXED);
	view->reserved0 = hdr->reserved0;
	view->reserved[0] = hdr->reserved1;
	view->reserved[1] = hdr->reserved2;
	view->reserved[2] = hdr->reserved3;
	view->version = hdr->version;
	view->ring_size = hdr->ring_size;
}

int hmb_cursors_valid(uint64_t head, uint64_t tail, uint64_t ring_size)
{
	return !((head | tail) & (HMB_RECORD_ALIGN - 1)) && head - tail <= ring_size;
}

int hmb_ring_store_tail(const struct hmb_ring *ring, uint64_t expected, uint64_t new_tail)
{
	struct hmb_ring_hdr *hdr = (struct hmb_ring_hdr *)ring->base;

	if (ring->advance)
		return ring->advance(ring, expected, new_tail);
	/* Pairs with the firmware's load of tail before it overwrites freed bytes. */
	return hmb_exchange_release(&hdr->tail, expected, new_tail) ? 0 : -ESTALE;
}
