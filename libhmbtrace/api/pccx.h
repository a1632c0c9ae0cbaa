/* SPDX-License-Identifier: Apache-2.0 */
/* Records to .pccx events and back. */

/* A duration that became known after its event had left the buffer. */
struct hmb_patch {
	uint64_t position; /* payload position of the 8 bytes */
	uint64_t duration;
};

enum hmb_encoding {
	HMB_ENCODING_FLATBUF,
	HMB_ENCODING_BINCODE,
};

struct hmb_event_maker {
	struct hmb_rules rules;
	struct hmb_open_table open;
	uint64_t clock_mhz;
	uint64_t position; /* payload position of the next event */
	uint64_t records; /* wrap markers not counted */
	uint64_t markers;
	uint64_t events;
	uint64_t pairs;
	uint64_t unmatched_begins; /* superseded; those still open are in the table */
	uint64_t unmatched_ends;
	uint64_t uncertain; /* ends whose begin stands in another piece */
	uint64_t short_payloads; /* too short for the key or duration field */
	uint64_t saturated; /* times beyond 64 bits of cycles */
	uint64_t invalid; /* durations that are none: negative, all ones, beyond 64 bits of ns */
	uint64_t cycles; /* largest start + duration */
	uint32_t encoding; /* enum hmb_encoding */
	uint32_t cores; /* largest cpu + 1 */
};

/* Buffers of one step. */
struct hmb_step {
	const uint8_t *input; /* dump bytes, from the start of a record */
	uint64_t input_len;
	uint64_t consumed;
	uint8_t *out;
	uint64_t out_cap;
	uint64_t out_len;
	struct hmb_patch *patches;
	uint64_t patches_cap;
	uint64_t patches_len;
	const uint64_t *cuts; /* where in the input a new piece begins, in order */
	uint64_t cuts_len;
	uint64_t cuts_done;
};

enum hmb_step_end {
	HMB_STEP_INPUT, /* all whole records consumed */
	HMB_STEP_OUTPUT, /* out or patches full */
	HMB_STEP_TABLE, /* the table of open begins must grow */
};

/* Dump records to events (SPEC P6). enum hmb_step_end, or -EBADMSG: no record at input + consumed. */
int hmb_make_events(struct hmb_event_maker *maker, struct hmb_step *step);

/* 24 bytes, packed: what flatbuf has on disk. */
struct hmb_flat_event {
	uint8_t core_id[4];
	uint8_t start_cycle[8];
	uint8_t duration[8];
	uint8_t event_type_id[4];
};

/* A bincode event whose strings are more than a known event_type. Offsets into the payload. */
struct hmb_event_strings {
	uint64_t type_offset;
	uint64_t type_length;
	uint64_t api_offset;
	uint64_t api_length;
	uint32_t row;
	uint32_t has_api;
	uint32_t known_type;
	uint32_t pad;
};

enum hmb_bincode_fault {
	HMB_FAULT_NONE,
	HMB_FAULT_TORN, /* value: bytes needed */
	HMB_FAULT_TYPE_LENGTH, /* value: length found */
	HMB_FAULT_API_LENGTH,
	HMB_FAULT_TYPE_UTF8,
	HMB_FAULT_API_UTF8,
	HMB_FAULT_TAG, /* value: tag found */
};

struct hmb_bincode {
	uint64_t position; /* in the payload; advanced */
	uint64_t left; /* events still to come; counted down */
	uint64_t fault_offset;
	uint64_t fault_value;
	uint32_t fault; /* enum hmb_bincode_fault */
	uint32_t last; /* 0: go on with the next call */
	uint64_t strings_len; /* filled by this call */
};

/* event_type_id of events whose event_type is none that is known. */
uint32_t hmb_event_type_other(void);
/*
 * Up to cap events from payload[0..n) at bincode->position. Returns their number, or -EBADMSG
 * (fault says what, events before it are counted in *done). strings may be NULL, else cap of them.
 */
int64_t hmb_bincode_read(struct hmb_bincode *bincode, const uint8_t *payload, uint64_t n,
			 struct hmb_flat_event *events, uint64_t cap,
			 struct hmb_event_strings *strings, uint64_t *done);
/* Events to bincode without api names; out must hold n * hmb_bincode_most() bytes. Returns bytes. */
uint64_t hmb_bincode_write(const struct hmb_flat_event *events, uint64_t n, uint8_t *out);
uint64_t hmb_bincode_most(void);

/* One sorted run that is merged; the caller refills it. */
struct hmb_run {
	const struct hmb_flat_event *next;
	const struct hmb_flat_event *end;
	uint64_t more; /* events of the run that are not in memory yet */
};

/*
 * Merge up to cap events by start_cycle, ties by run. Stops when a run must be refilled
 * (*refill: its index, else count). order: scratch for count numbers. Returns events written.
 */
uint64_t hmb_events_merge(struct hmb_run *runs, uint64_t count, uint64_t *order,
			  struct hmb_flat_event *out, uint64_t cap, uint64_t *refill);
/* Events until the first that starts before its predecessor; n if they are sorted. */
uint64_t hmb_events_sorted(const struct hmb_flat_event *events, uint64_t n);
/* Sort by start_cycle, stable; scratch holds n / 2 events. Fast where hardly anything is amiss. */
void hmb_events_sort(struct hmb_flat_event *events, uint64_t n, struct hmb_flat_event *scratch);
/* Where an open begin's event goes; scratch of hmb_events_settle(). */
struct hmb_place {
	uint64_t start;
	uint64_t ref;
	struct hmb_open *slot;
};

/*
 * Sort n events that stand at payload position base, and let the begins that still wait
 * follow their events.  scratch: n / 2 events; places: open->used of them.
 */
void hmb_events_settle(struct hmb_open_table *open, uint64_t base, struct hmb_flat_event *events,
		       uint64_t n, struct hmb_flat_event *scratch, struct hmb_place *places);
/* First row whose core_id is `word`, from `row` on; n if there is none. */
uint64_t hmb_events_find_core(const struct hmb_flat_event *events, uint64_t row, uint64_t n,
			      uint32_t word);
