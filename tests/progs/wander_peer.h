/* The other program of `wander`, and what it is told. */
#ifndef WANDER_PEER_H
#define WANDER_PEER_H
#include "wander_steps.h"
#include <sys/prctl.h>

struct order { int op, value; };

static int control, board_file, waiting = -1;

static void map_board(void)
{
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, board_file, 0);
    if (board == MAP_FAILED)
        die("mmap");
}

static void lost(int op)
{
    fwrite(board->text, 1, board->len, stdout);
    die("the peer is gone at order %c", op);
}

static int ask(int op, int value)
{
    struct order o = { op, value };
    if (send(control, &o, sizeof o, 0) != sizeof o || recv(control, &o, sizeof o, 0) != sizeof o)
        lost(op);
    return o.value;
}

/* The same, for an order that is carried out while this side goes on; `answered` waits for its end. */
static void tell(int op, int value) { ask(op, value); }
static void answered(void)
{
    struct order o;
    if (recv(control, &o, sizeof o, 0) != sizeof o)
        lost('-');
}

static int peer_forks(void)
{
    settle();
    note("the peer forks, and its child goes on");
    return ask('k', 0);
}

static void renew_sets(void)
{
    close(level);
    close(edge);
    close(once);
    level = watch(EPOLLIN | EPOLLRDHUP);
    edge = watch(EPOLLIN | EPOLLRDHUP | EPOLLET);
    once = watch(EPOLLIN | EPOLLRDHUP | EPOLLONESHOT);
}

static void blocking(void) { MUST(fcntl(fd, F_SETFL, MUST(fcntl(fd, F_GETFL)) & ~O_NONBLOCK)); }

/* In any number of pieces. */
static void send_stream(size_t total, int most)
{
    char *buf = malloc(most);
    uint64_t own = mix(luck + total);
    while (total > 0) {
        size_t len = 1 + next_random(&own) % most;
        if (len > total)
            len = total;
        put_stream(buf, len);
        ssize_t n = send(fd, buf, len, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        MUST(n);
        board->sent[side] += n;
        total -= n;
    }
    free(buf);
}

static void recv_stream(size_t total, int most)
{
    char *buf = malloc(most);
    while (total > 0) {
        ssize_t n = recv(fd, buf, total < (size_t)most ? total : (size_t)most, 0);
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (MUST(n) == 0)
            die("end of stream, %zu bytes early", total);
        took_stream(buf, n, 0);
        total -= n;
    }
    free(buf);
}

static void *sender(void *total)
{
    send_stream(*(int *)total, 20000);
    return NULL;
}

/* Both directions at once. */
static void both_ways(int total)
{
    pthread_t t;
    blocking();
    if (pthread_create(&t, NULL, sender, &total))
        die("pthread_create");
    recv_stream(total, 7000);
    pthread_join(t, NULL);
}

/* What somebody waits for on the other side. */
enum act { SENDS, SHUTS, CLOSES, RESETS, ACTS };

static void act(enum act what)
{
    nap(pick(4));
    switch (what) {
    case SENDS: {
        size_t len = 1 + pick(3000);
        put_stream(scratch, len);
        send_all(fd, scratch, len);
        board->sent[side] += len;
        break;
    }
    case SHUTS:
        MUST(shutdown(fd, SHUT_WR));
        board->shut_wr[side] = 1;
        break;
    case CLOSES: let_go(0); break;
    default: let_go(1);
    }
}

static int carry_out(struct order *o)
{
    int s;
    switch (o->op) {
    case 'c': adopt(dial(o->value)); return 0;
    case 'l': waiting = listen_on(0); return port_of(waiting);
    case 'a':
        s = answer(waiting);
        close(waiting);
        adopt(s);
        return 0;
    case 'S': settle(); return 0;
    case 's':
        luck = mix(o->value);
        settle();
        step_alone();
        return 0;
    case 'h': settle(); step_shutdown(o->value); return 0;
    case 'x': settle(); step_close(o->value); return 0;
    case 'r': settle(); read_out(); MUST(fd < 0 ? 0 : limit(SO_RCVTIMEO, BRIEF)); return 0;
    case 'n':
        put_stream(scratch, o->value);
        send_all(fd, scratch, o->value);
        board->sent[1] += o->value;
        return 0;
    case 'd': settle(); blocking(); recv_stream(unread(1), 4000); return 0;
    case 'f': blocking(); recv_stream(o->value, 1 << 16); return 0;
    case 'k':
        if (MUST(fork())) {
            close(control);
            signal(SIGCHLD, SIG_IGN);
            for (;;)
                pause();
        }
        /* Goes on when its parent is killed, and ends with the channel. */
        limit_life(900);
        renew_sets();
        return getpid();
    }
    die("no order %c", o->op);
    return 0;
}

/* Both orders that are answered at once and those that are answered when they are done. */
static int peer_main(int channel, int file)
{
    struct order o;
    control = channel;
    board_file = file;
    side = 1;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    map_board();
    while (recv(control, &o, sizeof o, 0) == sizeof o) {
        int early = strchr("wTA", o.op) != NULL;
        if (!early)
            o.value = carry_out(&o);
        (void)!send(control, &o, sizeof o, MSG_NOSIGNAL);
        if (o.op == 'w')
            echo(o.value, 1);
        if (o.op == 'T')
            both_ways(o.value);
        if (o.op == 'A') {
            luck = mix(o.value);
            act(o.value % ACTS);
        }
        if (o.op == 'T' || o.op == 'A')
            (void)!send(control, &o, sizeof o, MSG_NOSIGNAL);
    }
    _exit(0);
}
#endif
