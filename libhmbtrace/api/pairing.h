/* SPDX-License-Identifier: Apache-2.0 */
/* Which begin belongs to which end. */

enum hmb_rule_kind {
	HMB_RULE_INSTANT,
	HMB_RULE_COMPLETE, /* carries its own duration */
	HMB_RULE_BEGIN,
	HMB_RULE_END,
};

/* Where an integer stands in a payload. */
struct hmb_payload_int {
	uint16_t offset;
	uint8_t size; /* 1, 2, 4, 8; 0: nowhere */
	uint8_t is_signed;
};

/* What the catalog says about one opcode. */
struct hmb_rule {
	uint8_t kind; /* enum hmb_rule_kind */
	uint8_t event_type; /* flatbuf event_type_id */
	uint16_t pair; /* begin and end of a pair share it */
	struct hmb_payload_int key; /* what pairs a begin with its end; size 0: the cpu */
	struct hmb_payload_int duration;
	uint32_t text_offset; /* bincode's event_type and api_name, ready to copy */
	uint32_t text_length;
	uint32_t cycles_div; /* duration in cycles = value * cycles_mul / cycles_div */
	uint64_t cycles_mul;
	uint64_t ns_mul; /* duration in ns = value * ns_mul / ns_div */
	uint64_t ns_div;
};

/* A begin that waits for its end. */
struct hmb_open {
	uint64_t key;
	uint64_t ts_ns;
	uint64_t ref; /* payload position (events) or row (pairing): ever rising */
	uint32_t pair; /* rule's pair + 1; 0: free slot */
	uint16_t opcode;
	uint8_t cpu;
	uint8_t reserved;
	uint64_t piece; /* how many pieces began before it: gaps, epochs and clock steps end one */
};

/* Hash table of begins; the caller owns the slots, zeroed at first. */
struct hmb_open_table {
	struct hmb_open *slots;
	uint64_t size; /* power of two */
	uint64_t used;
	uint64_t seed; /* of the hash: keys are payload, and must not be able to aim at one slot */
	uint64_t piece; /* the one that is being read */
};

/* Copy the begins with ref >= min_ref into an empty table; -ENOSPC if it is too small. */
int hmb_open_rehash(const struct hmb_open_table *from, struct hmb_open_table *to, uint64_t min_ref);

struct hmb_rules {
	const uint32_t *index; /* by opcode, 65536 of them: which rule */
	const struct hmb_rule *rules; /* rule 0: opcodes that the catalog does not know */
	const uint8_t *texts;
};

/* A begin and its end. */
struct hmb_match {
	uint64_t begin_row;
	uint64_t end_row;
	uint64_t begin_ts_ns;
	uint64_t end_ts_ns;
	uint64_t key;
	uint16_t begin_opcode;
	uint16_t end_opcode;
	uint8_t begin_cpu;
	uint8_t end_cpu;
	uint16_t pair;
	uint64_t uncertain; /* not 0: they stand in different pieces, and what lies between is unknown */
};

/* A begin without an end, or an end without a begin. */
struct hmb_single {
	uint64_t row;
	uint64_t ts_ns;
	uint64_t key;
	uint16_t opcode;
	uint8_t cpu;
	uint8_t is_end;
	uint32_t pair;
};

/* Columns of a batch. */
struct hmb_pair_rows {
	const uint8_t *payloads; /* payload of row i begins at payloads + payload_at[i] */
	const uint64_t *payload_at;
	const uint64_t *ts_ns;
	const uint16_t *opcode;
	const uint8_t *cpu;
	const uint8_t *flags;
	const uint16_t *payload_len;
	uint64_t rows;
	uint64_t done; /* rows taken */
	uint64_t row_base; /* number of row 0 in the whole stream */
	const uint64_t *cuts; /* rows before which a new piece begins, in order */
	uint64_t cuts_len;
	uint64_t cuts_done;
	struct hmb_match *matches; /* room for every row */
	uint64_t matches_len;
	struct hmb_single *singles; /* room for every row */
	uint64_t singles_len;
};

/*
 * Durations that records carry themselves, in ns: out[i] = values[i] * mul / div.  Returns how many
 * are none, and makes valid[i] 0 for those: negative, 2^64 - 1 ("not known yet"), beyond 64 bits.
 * values: the field's bits; size: its bytes.
 */
uint64_t hmb_durations_ns(const uint64_t *values, uint64_t n, uint32_t size, uint32_t is_signed,
			  uint64_t mul, uint64_t div, uint64_t *out, uint8_t *valid);

/* 0: all rows done; HMB_STEP_TABLE: the table must grow first. */
int hmb_pair_rows(const struct hmb_rules *rules, struct hmb_open_table *open,
		  struct hmb_pair_rows *batch);
