/* SPDX-License-Identifier: Apache-2.0 */
/* An attached region (SPEC R1, R2). */

enum hmb_field {
	HMB_FIELD_NONE,
	HMB_FIELD_MAGIC,
	HMB_FIELD_VERSION,
	HMB_FIELD_RING_SIZE,
	HMB_FIELD_RECORD_AREA_OFF,
	HMB_FIELD_REGION,
};

/* Why a ring was refused: the first field that is wrong, in the order of R1. */
struct hmb_refusal {
	uint32_t field; /* enum hmb_field */
	uint32_t reserved;
	uint64_t found;
	uint64_t expected; /* ring_size: the smallest legal value; region: the bytes needed */
};

/*
 * How the host stores `tail`: a direct compare-exchange where advance is NULL,
 * else a call (read-only mappings: NVME_HMB_TRACE_ADVANCE_TAIL).  advance
 * returns 0, -ESTALE when `tail` is not `expected`, or another -errno.
 */
struct hmb_ring {
	uint8_t *base;
	uint64_t region_size;
	uint64_t ring_size;
	int (*advance)(const struct hmb_ring *ring, uint64_t expected, uint64_t new_tail);
	int32_t fd; /* for advance by ioctl, and poll(2) where can_poll is set; else -1 */
	uint32_t can_poll;
};

struct hmb_ring_view {
	uint64_t head;
	uint64_t tail;
	uint64_t reserved[3]; /* reserved1..3 */
	uint32_t flags;
	uint32_t reserved0;
	uint32_t version;
	uint32_t ring_size;
};

/* R1. Writes nothing to the region. -EINVAL fills *refusal; 0 fills *ring. */
int hmb_ring_attach(struct hmb_ring *ring, void *base, uint64_t region_size,
		    struct hmb_refusal *refusal);
/* Make `tail` go through ioctl(fd, NVME_HMB_TRACE_ADVANCE_TAIL). */
void hmb_ring_use_ioctl(struct hmb_ring *ring, int fd);
/* One look at the header, head by acquire. */
void hmb_ring_view(const struct hmb_ring *ring, struct hmb_ring_view *view);
/* R2: both multiples of 8 and head - tail <= ring_size (mod 2^64). */
int hmb_cursors_valid(uint64_t head, uint64_t tail, uint64_t ring_size);
/* Store tail if it is still expected (release): 0 or -ESTALE. */
int hmb_ring_store_tail(const struct hmb_ring *ring, uint64_t expected, uint64_t new_tail);
