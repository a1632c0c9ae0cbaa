/* SPDX-License-Identifier: Apache-2.0 */
/* Dump bytes to columns and statistics (offline). */

enum hmb_walk_end {
	HMB_WALK_DONE, /* every byte was used */
	HMB_WALK_FULL, /* columns or breaks are full: take them, call again with the rest */
	HMB_WALK_SHORT_HEADER, /* fewer than 32 bytes are left */
	HMB_WALK_SHORT_PAYLOAD, /* the record goes on past the end */
	HMB_WALK_BAD_MAGIC,
	HMB_WALK_BAD_LENGTH, /* payload_len > 4064 */
};

/* One row a record. Arrays of the caller, `cap` entries each. */
struct hmb_columns {
	uint64_t *offset; /* in the dump, bytes */
	uint64_t *ts_ns;
	uint32_t *seq;
	uint16_t *opcode;
	uint16_t *payload_len; /* as used: 0 for a wrap marker */
	uint8_t *cpu;
	uint8_t *flags;
	uint64_t cap;
	uint64_t len;
	uint32_t with_markers; /* 1: wrap markers get rows too */
	uint32_t pad;
};

/* Where the sequence breaks (SPEC R12). */
struct hmb_break {
	uint64_t offset; /* of the record after the break */
	uint64_t ts_ns; /* its time */
	uint64_t lost; /* records; 0 unless kind is HMB_EV_GAP */
	uint32_t seq_before;
	uint32_t seq_after;
	/*
	 * HMB_EV_GAP, HMB_EV_DUPLICATE, HMB_EV_SEQ_RESET; or HMB_EV_SEQ_GLITCH, which takes the
	 * place of the break that was reported last, at the same offset (R12).
	 */
	uint32_t kind;
	uint32_t pad;
};

/* At least 3 entries: a record may need so many. */
struct hmb_breaks {
	struct hmb_break *item;
	uint64_t cap;
	uint64_t len;
};

/* Histograms; a log2 bucket i > 0 holds values of [2^(i-1), 2^i), bucket 0 holds 0. */
struct hmb_tally {
	uint64_t *opcode_records; /* 65536 */
	uint64_t *opcode_bytes; /* 65536, payload */
	uint64_t *cpu_records; /* 256 */
	uint64_t *payload_log2; /* 65 */
	uint64_t *interval_log2; /* 65, ns between neighbours that do not go backwards */
};

/* The last break, which the next record may turn into a glitch (R12). */
struct hmb_walk_pending {
	uint64_t offset;
	uint64_t ts_ns;
	uint64_t lost; /* as counted for it */
	uint32_t seq_before;
	uint32_t seq;
	uint32_t kind; /* of the break; 0: none */
	uint32_t pad;
	struct hmb_marker_run markers_before; /* between it and the record before */
	struct hmb_marker_run markers; /* since the record before */
};

/* Where a walk stands, and what it has seen. All zero at the start. */
struct hmb_walk {
	uint64_t offset; /* dump offset of the next byte to look at */
	uint64_t records; /* wrap markers not counted */
	uint64_t wrap_markers;
	uint64_t payload_bytes;
	uint64_t truncated;
	uint64_t unknown_flags;
	uint64_t gaps;
	uint64_t lost;
	uint64_t duplicates;
	uint64_t sequence_resets;
	uint64_t seq_glitches;
	uint64_t clock_steps_back; /* records earlier than the one before */
	uint64_t first_ts_ns;
	uint64_t last_ts_ns;
	uint64_t min_ts_ns;
	uint64_t max_ts_ns;
	uint32_t first_seq; /* of records */
	uint32_t last_record_seq;
	uint32_t last_seq; /* of the last record of this sequence */
	uint32_t have_seq;
	struct hmb_marker_run markers;
	/*
	 * A break counts as what it looks like until the record behind it denies it; what to take
	 * back then stands here.
	 */
	struct hmb_walk_pending pending;
	/* Set by the caller: bytes that the rejects of this capture hold, 0 where none are known. */
	uint64_t rejected_bytes;
};

/*
 * Walk n dump bytes that begin at walk->offset, from record to record.  Any of
 * columns, breaks and tally may be NULL.  Returns enum hmb_walk_end;
 * walk->offset is then that of the first byte not used.
 */
int hmb_walk(struct hmb_walk *walk, const uint8_t *data, uint64_t n, struct hmb_columns *columns,
	     struct hmb_breaks *breaks, const struct hmb_tally *tally);

/*
 * Copy the field at record offset `at` (32 is the payload's begin), `width` bytes, of n records
 * to `out`, back to back.  offsets are those of the dump, base is the offset of data[0].
 */
void hmb_gather(const uint8_t *data, uint64_t base, const uint64_t *offsets, uint64_t n,
		uint32_t at, uint32_t width, uint8_t *out);

/*
 * Copy n whole records (header, payload, padding) to `out`, back to back; returns the bytes.
 * `out` must have room for all of them.
 */
uint64_t hmb_copy_records(const uint8_t *data, uint64_t base, const uint64_t *offsets, uint64_t n,
			  uint8_t *out);

/* Copy the payloads of n records to `out`, back to back; ends[i] is where the i-th ends in it. */
void hmb_gather_payloads(const uint8_t *data, uint64_t base, const uint64_t *offsets,
			 const uint16_t *lengths, uint64_t n, uint8_t *out, int32_t *ends);
