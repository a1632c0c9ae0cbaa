/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way of a record from ring to file, as libhmbtrace/capture/{collector,collect,spool}.c and the
 * daemon's writer go it, while the daemon dies and the controller resets at any step.
 * tests/unit/test_spin.py runs it with -DRECORDS, -DCRASHES and -DRESETS, and mutants of it.
 *
 * Holds: what was published is in the file once and in order, unless a reset wiped it before it
 * was committed; tail never passes head; no tail of an old epoch gets into a new one.
 *
 * Abstracted: a record is a cell, its bytes are its number; nothing is damaged; firmware never
 * overwrites unread cells, and when it resets takes the magic away first and puts it back last;
 * memory is sequentially consistent (barriers: libhmbtrace/capture/barrier.h); each look at the whole
 * header is one step, and so is the last look together with the store of tail: what a device does
 * in between nobody can see.  The disk does not die: the file is written at data_tail.
 */
#define RING 2
#define SPOOL 3
#define LAST slot[current]
#define OTHER slot[1 - current]
#define NOWHERE 255
#define RING_IS_SAME (magic && tail == mine && head >= h && cell[mine % RING] == first)

byte cell[RING], head, tail; /* the region */
bit magic = 1;
typedef Commit { byte data_head, before, after, head_seen };
Commit slot[2]; /* the spool, which survives the daemon: commits, data, the writer's commit */
bit current, down, collector_dead, writer_dead;
byte data[SPOOL], data_tail, file[RECORDS + 1];
byte published, epoch; /* for the claims, like the next */
bit committed[RECORDS + 1], wiped[RECORDS + 1];

proctype firmware() {
	byte i, resets;
	do
	:: published < RECORDS && head - tail < RING ->
		cell[head % RING] = published + 1;
		d_step { published++; head++ }
	:: resets < RESETS ->
		resets++; magic = 0;
		d_step {
			for (i : tail .. head - 1) { wiped[cell[i % RING]] = !committed[cell[i % RING]] }
			epoch++; tail = 0; i = 0
		}
		head = 0;
		magic = 1
	od
}

inline write_slot(from, to, seen, n) { /* torn if we die within */
	OTHER.data_head = LAST.data_head + n;
	OTHER.before = from; OTHER.after = to; OTHER.head_seen = seen
}

inline publish() { /* one store; the rest is for the claims */
	d_step {
		current = 1 - current;
		for (i : OTHER.data_head .. LAST.data_head - 1) { committed[data[i % SPOOL]] = 1 }
		assert(LAST.data_head <= RECORDS)
	}
}

inline compare_bytes() { /* hmb_spool_continues(): ring against spool */
	same = OTHER.after == LAST.before &&
	       OTHER.data_head + LAST.after - LAST.before == LAST.data_head;
	for (i : 0 .. LAST.after - LAST.before - 1) {
		same = same && cell[(LAST.before + i) % RING] == data[(OTHER.data_head + i) % SPOOL]
	}
}

inline store_tail(to) { assert(taken_in == epoch && to <= head); tail = to; mine = to }

inline store_tail_of_pass() {
	if :: atomic { RING_IS_SAME -> store_tail(mine + n) } :: else -> mine = NOWHERE fi
}

proctype collector() {
	byte mine, h, n, i, first, taken_in; bit same;
start:	{
		d_step {
			magic -> taken_in = epoch;
			compare_bytes();
			if
			:: tail == LAST.after -> mine = tail
			:: tail != LAST.after && tail == LAST.before && head >= LAST.head_seen && same ->
				store_tail(LAST.after)
			:: else -> mine = NOWHERE
			fi
		}
		do
		:: !magic || tail != mine -> /* a new epoch */
			d_step { magic -> mine = tail; taken_in = epoch; h = 0; n = 0; first = 0 }
			write_slot(mine, mine, mine, 0);
			publish()
		:: magic && tail == mine && head != mine ->
			first = cell[mine % RING];
			h = head; /* after `first`: no head of an old ring over bytes of a new one */
			n = (h > mine -> 1 : 0);
			if :: h > mine + 1 -> n = 2 :: true fi;
			LAST.data_head + n - data_tail <= SPOOL;
			for (i : 0 .. n - 1) { data[(LAST.data_head + i) % SPOOL] = cell[(mine + i) % RING] }
			if :: atomic { n && RING_IS_SAME -> taken_in = epoch };
				write_slot(mine, mine + n, h, n);
				publish();
				store_tail_of_pass();
			:: else fi
		od
	} unless { down };
	d_step { mine = 0; h = 0; n = 0; i = 0; first = 0; same = 0; collector_dead = 1 }
	d_step { !down -> collector_dead = 0 }
	goto start
}

proctype writer() {
start:	{
		do
		:: data_tail < LAST.data_head ->
			file[data_tail] = data[data_tail % SPOOL];
			data_tail++;
		od
	} unless { down };
	writer_dead = 1; d_step { !down -> writer_dead = 0 }
	goto start
}

proctype fate() {
	byte crashes;
	do
	:: crashes < CRASHES && !collector_dead && !writer_dead ->
		crashes++; down = 1;
		collector_dead && writer_dead -> down = 0
	od
}

init {
	byte i, r, times;
	atomic { run firmware(); run collector(); run writer(); run fate() }
	timeout; /* all is at rest */
	d_step {
		assert(published == RECORDS && tail == head && data_tail == LAST.data_head);
		for (r : 1 .. RECORDS) {
			times = 0;
			for (i : 0 .. data_tail - 1) {
				times = times + (file[i] == r -> 1 : 0);
				assert(i == 0 || file[i] > file[i - 1])
			}
			assert(times == 1 || (times == 0 && wiped[r]))
		}
	}
}
