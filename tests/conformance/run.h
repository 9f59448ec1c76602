/* What the runner and the frame share. */
#ifndef RUN_H
#define RUN_H

/* Round trips before a case begins: so many, or as many as it takes until the connection has left TCP. */
#define WARM_UP -1

struct settings { int warm, nudge, high, dials; };
extern struct settings settings;
/* Of the running case: the peer's orders, and where its lines go. */
extern int control, transcript;

/*
 * Counted by a case for the runner: connections warmed up, those that had left TCP then, and whether any byte of the
 * case itself came or went by another way.
 */
struct facts { int warmed, upgraded, switched; long began, took; };
extern struct facts *facts;
#endif
