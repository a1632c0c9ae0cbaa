/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collector and daemon as processes of their own (docs/durability.md, "Two processes"): either
 * is killed at any step and started again; a daemon finds the collector that runs; one collector
 * hands over to the next, and either of the two may be killed in the middle of it.
 * tests/unit/test_spin.py runs it with -DRECORDS, -DKILLS (of collectors), -DCRASHES (of daemons)
 * and -DHANDOVERS, and mutants of it.  What a reset of the controller does is in spool.pml.
 *
 * Holds: what was published is in the file once and in order; never do two processes store tail.
 *
 * Abstracted: as in spool.pml; the kernel frees the lock of a process that dies; who starts
 * processes (daemon or systemd) looks whether one runs, and may be wrong by the time it acts.
 */
#define RING 2
#define SPOOL 3
#define LAST slot[current]
#define OTHER slot[1 - current]
#define STARTS (KILLS + HANDOVERS + 1)

byte cell[RING], head, tail; /* the ring */
typedef Commit { byte data_head, before, after };
Commit slot[2]; /* the spool */
bit current;
byte data[SPOOL], data_tail, file[RECORDS + 1];
byte lock; /* who consumes the ring; 0: free */
byte successor, gone; /* the live page: who waits to take over, who has left the page to it */
byte starts, kills, handovers; /* so far */
byte collectors; /* that run */
bit dying[STARTS + 1], writing, down, want_handover;
byte published;

proctype firmware() {
	do
	:: published < RECORDS && head - tail < RING ->
		cell[head % RING] = published + 1;
		d_step { published++; head++ }
	od
}

inline store_tail(to) { assert(lock == me && to <= head); tail = to; mine = to }

inline judge() { /* hmb_spool_continues(): the same ring, and no reset in this model */
	if
	:: tail == LAST.after -> mine = tail
	:: tail != LAST.after && tail == LAST.before -> store_tail(LAST.after)
	fi
}

proctype collector(byte me; bit takes_over) {
	byte mine;
	{
		if
		:: takes_over ->
			successor = me;
			if
			:: gone == me -> skip
			:: lock == 0 && gone != me -> successor = 0; goto over /* it died instead */
			fi;
		:: else
		fi;
		atomic {
			if
			:: lock == 0 -> lock = me
			:: lock != 0 -> goto over /* busy */
			fi
		}
		if
		:: takes_over && tail == LAST.after -> mine = LAST.after
		:: else -> judge()
		fi;
		successor = (successor == me -> 0 : successor);
		do
		:: tail != mine -> mine = tail /* not ours any more: a new epoch */
		:: tail == mine && head != mine && LAST.data_head - data_tail < SPOOL ->
			data[LAST.data_head % SPOOL] = cell[mine % RING];
			d_step {
				OTHER.data_head = LAST.data_head + 1;
				OTHER.before = mine; OTHER.after = mine + 1
			}
			current = 1 - current;
			store_tail(mine + 1)
		:: tail == mine && want_handover && successor != 0 && successor != me ->
			want_handover = 0;
			lock = 0;
			gone = successor;
			break
		od
	} unless { dying[me] };
over:	skip;
	d_step {
		lock = (lock == me -> 0 : lock);
		mine = 0; collectors--
	}
}

/* Whoever starts collectors: one where it sees none, a successor where somebody asks for one. */
proctype starter() {
	do
	:: atomic { lock == 0 && collectors < 2 && starts < STARTS ->
		starts++; collectors++; run collector(starts, 0) }
	:: atomic { handovers < HANDOVERS && lock != 0 && starts < STARTS ->
		handovers++; starts++; collectors++; want_handover = 1; run collector(starts, 1) }
	:: atomic { kills < KILLS && collectors > 0 ->
		kills++;
		if
		:: lock != 0 -> dying[lock] = 1 /* the one that collects, or ... */
		:: successor != 0 && !dying[successor] -> dying[successor] = 1 /* ... the next one */
		:: dying[starts] = 1
		fi }
	od
}

proctype daemon() {
start:	{
		do
		:: data_tail < LAST.data_head ->
			file[data_tail] = data[data_tail % SPOOL];
			data_tail++
		od
	} unless { down };
	d_step { !writing -> writing = 1 }
	d_step { !down -> writing = 0 }
	goto start
}

proctype fate() {
	byte crashes;
	do
	:: crashes < CRASHES -> crashes++; down = 1; writing -> down = 0
	od
}

init {
	byte i;
	atomic { run firmware(); run daemon(); run starter(); run fate() }
	timeout; /* all is at rest */
	d_step {
		for (i : 0 .. data_tail - 1) { assert(file[i] == i + 1) }
		assert(starts == STARTS || (published == RECORDS && tail == head));
		assert(starts == STARTS || data_tail == LAST.data_head && data_tail == RECORDS)
	}
}
