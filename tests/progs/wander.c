/*
 * wander PORT SEED STEPS WARM [WHO [DEVICE]]
 *
 * Two programs take random steps on one connection after the other: calls in one thread and in several, in children that
 * share the connection, with time limits, up to its end by shutdown, close, reset, or SIGKILL. Every step is chosen by SEED
 * and waits until the kernel has done its part, so the transcript must not depend on how the bytes travel. WARM round trips
 * precede on each connection; "any": another number for each, so that the switch falls anywhere. WHO is "both", or which of the
 * programs has the library that is preloaded: "here" or "there". DEVICE is what SHORTWIRE_PREFER becomes, or "copy".
 */
#include "wander_peer.h"
#include "wander_waits.h"
#include <stddef.h>


static int port, listener, warm, steps_left, no_kills;

static void start_peer(void)
{
    int ends[2];
    char number[2][12];
    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
    MUST(fcntl(ends[0], F_SETFD, FD_CLOEXEC));
    snprintf(number[0], 12, "%d", ends[1]);
    snprintf(number[1], 12, "%d", board_file);
    const char *library = getenv("WANDER_PEER_LIBRARY");
    peer = MUST(fork());
    if (peer == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (library && *library)
            setenv("LD_PRELOAD", library, 1);
        else if (library)
            unsetenv("LD_PRELOAD");
        execl("/proc/self/exe", "wander", "peer", number[0], number[1], (char *)NULL);
        die("exec");
    }
    close(ends[1]);
    control = ends[0];
}

static void end_of(pid_t pid, int sig)
{
    int status;
    if (sig)
        kill(pid, sig);
    else
        close(control);
    MUST(waitpid(pid, &status, 0));
    if (status != sig)
        die("the peer ends with status %x", status);
}

static void connect_both(void)
{
    memset(board, 0, offsetof(struct board, turn));
    bereft = 0;
    int s, rounds = pick(14);
    if (warm >= 0)
        rounds = warm;
    if (pick(2)) {
        ask('c', port);
        s = answer(listener);
    } else {
        s = dial(ask('l', 0));
        ask('a', 0);
    }
    adopt(s);
    ask('w', rounds);
    echo(rounds, 0);
    ask('S', 0);
}

/* The child of a peer goes on without it. */
static void leave_child(void)
{
    note("the peer's first process is killed, its child goes on");
    end_of(peer, SIGKILL);
    peer = child_of_peer;
    child_of_peer = 0;
    bereft = 1;
}

/* So many round trips that the connection has left TCP for certain: of a killed peer TCP and a ring tell the same, but in
 * between nobody can tell whether it has only ended its half. */
static void rub(void)
{
    note("round trips");
    read_all();
    ask('d', 0);
    ask('w', 60);
    echo(60, 0);
}

/* The peer's process is killed, and whoever else holds the connection there. */
static void kill_peer(void)
{
    ask('S', 0);
    if (child_of_peer) {
        note("the peer's child is killed");
        kill(child_of_peer, SIGKILL);
        for (long limit = now_ms() + PATIENCE; kill(child_of_peer, 0) == 0 && now_ms() < limit; nap(1))
            ;
        child_of_peer = 0;
        step_look();
        if (can_say())
            step_send();
        step_look();
    }
    note("the peer is killed");
    board->reset |= unread(1) > 0 && !(board->shut_wr[0] && board->shut_wr[1]);
    end_of(peer, SIGKILL);
    close(control);
    board->gone[1] = 1;
    peer = 0;
    /* Nothing but the kernel tells of it, and need not be asked at every call. */
    settle();
    nap(40);
}

/* Another process of this side takes steps, and the connection with it or not. */
static void step_fork(void)
{
    int steps = pick(6), over = pick(4) == 0, killed = pick(2), status;
    /* With the connection it goes like a peer that is killed. */
    if (over && killed && (no_kills || !can_hear() || !can_say()))
        killed = 0;
    if (over && killed)
        rub();
    note("a child takes %d steps%s%s", steps, over ? ", the connection with it" : "", killed ? ", and is killed" : "");
    uint64_t its = mix(luck + 1);
    pid_t child = MUST(fork());
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        luck = its;
        /* A set that two processes wait on is another matter. */
        renew_sets();
        for (int i = 0; i < steps; i++) {
            board->turn++;
            settle();
            if (pick(2))
                step_alone();
            else
                ask('s', pick(1 << 30));
        }
        settle();
        if (killed)
            kill(getpid(), SIGKILL);
        _exit(0);
    }
    if (over) {
        close(fd);
        if (dup_fd >= 0)
            close(dup_fd);
        forget();
    }
    MUST(waitpid(child, &status, 0));
    note("it ends with %x", status);
    if (!over)
        return renew_sets();
    board->reset |= unread(0) > 0;
    board->gone[0] = 1;
    if (killed)
        nap(40);
}

/* What nobody holds any more can be looked at for a while from the other side, and is then closed. */
static void step_end(void)
{
    int how = pick(9);
    settle();
    ask('S', 0);
    if (how < 5) {
        int talks = can_hear() && can_say();
        if (how >= 2 && talks && !no_kills) {
            rub();
            kill_peer();
        } else if (!alone()) {
            return;
        } else {
            ask('x', how == 1);
        }
        for (int i = 2 + pick(6); i > 0; i--) {
            settle();
            board->turn++;
            if (pick(8) == 0)
                step_shutdown(pick(3));
            else
                step_alone();
        }
        settle();
    } else if (how < 7) {
        step_close(how == 6);
    } else {
        step_shutdown(SHUT_WR);
    }
}

static void finish(void)
{
    if (child_of_peer)
        leave_child();
    if (!board->gone[1]) {
        if (!board->gone[0])
            step_shutdown(SHUT_WR);
        if (board->gone[0] || !board->shut_rd[1])
            ask('r', 0);
        if (bereft && !board->gone[0])
            step_close(0);
        ask('x', 0);
    }
    if (!board->gone[0]) {
        if (!board->shut_rd[0])
            read_out();
        step_close(0);
    }
    if (!peer)
        start_peer();
}

static void step(void)
{
    int what = pick(100);
    if (what < 36)
        step_alone();
    else if (what < 72)
        ask('s', pick(1 << 30));
    else if (what < 84)
        step_wait();
    else if (what < 88)
        step_limits();
    else if (what < 91)
        step_crowd();
    else if (what < 94)
        step_fork();
    else if (what < 95)
        step_shutdown(pick(3));
    else if (what < 96)
        ask('h', pick(3));
    else if (what < 97 && child_of_peer)
        leave_child();
    else if (what < 97 && !no_kills)
        child_of_peer = peer_forks();
    else if (what < 98)
        step_flood();
    else
        step_end();
}

static void wander(void)
{
    while (steps_left > 0) {
        board->turn++;
        note("a connection");
        connect_both();
        while (steps_left-- > 0 && !board->gone[0] && !board->gone[1]) {
            board->turn++;
            settle();
            step();
        }
        finish();
    }
    end_of(peer, 0);
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    limit_life(900);
    if (argc == 4 && strcmp(argv[1], "peer") == 0)
        return peer_main(atoi(argv[2]), atoi(argv[3]));
    if (argc < 5)
        die("usage: wander PORT SEED STEPS WARM [WHO [DEVICE]]");
    const char *who = argc > 5 ? argv[5] : "both", *library = getenv("LD_PRELOAD");
    if (library && !getenv("WANDER_PEER_LIBRARY") && (strcmp(who, "both") || argc > 6)) {
        /* The library reads its settings when it is loaded. */
        if (argc > 6 && strcmp(argv[6], "copy") == 0)
            setenv("SHORTWIRE_COPY", "1", 1);
        else if (argc > 6)
            setenv("SHORTWIRE_PREFER", argv[6], 1);
        if (strcmp(who, "there") == 0)
            unsetenv("LD_PRELOAD");
        setenv("WANDER_PEER_LIBRARY", strcmp(who, "here") == 0 ? "" : library, 1);
        execv("/proc/self/exe", argv);
        die("exec");
    }
    port = atoi(argv[1]);
    luck = mix(strtoull(argv[2], NULL, 10));
    steps_left = atoi(argv[3]);
    /* Over a device that copies a killed peer takes with it how far it had read. */
    no_kills = argc > 6 && strcmp(argv[6], "copy");
    warm = strcmp(argv[4], "any") ? atoi(argv[4]) : -1;
    MUST(prctl(PR_SET_CHILD_SUBREAPER, 1));
    board_file = MUST(memfd_create("board", 0));
    MUST(ftruncate(board_file, sizeof *board));
    map_board();
    listener = listen_on(port);
    MUST(fcntl(listener, F_SETFD, FD_CLOEXEC));
    start_peer();
    wander();
    fwrite(board->text, 1, board->len, stdout);
    return 0;
}
