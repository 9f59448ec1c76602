/*
 * service CGROUP ADDRESS:PORT BACKEND:PORT BACKEND:PORT
 *
 * Behind one address there are two servers, as Cilium's socket load balancer makes it of a Kubernetes service: a program at
 * connect() leads the socket to one of them, by lot, and remembers the socket's cookie; one at getpeername() answers with the
 * address that the program asked for. For the programs of a control group, until standard input ends; then prints how often
 * each was taken and how often the peer's name was changed. Says "no BPF: why" and exits with 77 where the kernel refuses.
 */
#include "common.h"
#include <linux/bpf.h>
#include <sys/syscall.h>

enum { R0, R1, R2, R3, R4, R6 = 6, R7, R8, FRAME = 10 };
/* Where struct bpf_sock_addr has them. Both are in network byte order, the port as a u32. */
enum { USER_IP4 = 4, USER_PORT = 24 };
/* On the stack: the key of a note is cookie, backend's address and port; its value the service's address and port. */
enum { KEY = -16, KEY_IP4 = -8, KEY_PORT = -4, VALUE = -24, VALUE_PORT = -20, COUNTER = -28 };
enum { PEER_NAMES = 2, COUNTERS };

#define INSN(c, d, s, o, i) ((struct bpf_insn){.code = (c), .dst_reg = (d), .src_reg = (s), .off = (o), .imm = (int)(i)})
#define MOV(d, s) INSN(BPF_ALU64 | BPF_MOV | BPF_X, d, s, 0, 0)
#define SET(d, i) INSN(BPF_ALU | BPF_MOV | BPF_K, d, 0, 0, i)
#define ADD(d, i) INSN(BPF_ALU64 | BPF_ADD | BPF_K, d, 0, 0, i)
#define AND(d, i) INSN(BPF_ALU | BPF_AND | BPF_K, d, 0, 0, i)
#define LOAD(d, s, o) INSN(BPF_LDX | BPF_MEM | BPF_W, d, s, o, 0)
#define STORE(d, o, s) INSN(BPF_STX | BPF_MEM | BPF_W, d, s, o, 0)
#define STORE64(d, o, s) INSN(BPF_STX | BPF_MEM | BPF_DW, d, s, o, 0)
#define PUT(d, o, i) INSN(BPF_ST | BPF_MEM | BPF_W, d, 0, o, i)
#define COUNT_ONE(d, s) INSN(BPF_STX | BPF_ATOMIC | BPF_DW, d, s, 0, BPF_ADD)
#define UNLESS(d, i, o) INSN(BPF_JMP32 | BPF_JNE | BPF_K, d, 0, o, i)
#define IF_NULL(d, o) INSN(BPF_JMP | BPF_JEQ | BPF_K, d, 0, o, 0)
#define SKIP(o) INSN(BPF_JMP | BPF_JA, 0, 0, o, 0)
#define MAP(d, fd) INSN(BPF_LD | BPF_DW | BPF_IMM, d, BPF_PSEUDO_MAP_FD, 0, fd), INSN(0, 0, 0, 0, 0)
#define CALL(f) INSN(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_##f)
#define ALLOW SET(R0, 1), INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0)
#define LENGTH(a) (sizeof(a) / sizeof(*(a)))

static int bpf(int command, union bpf_attr *attr) { return (int)syscall(SYS_bpf, command, attr, sizeof *attr); }

static void refused(const char *what)
{
    printf("no BPF: %s: %s\n", what, strerror(errno));
    exit(77);
}

static int new_map(uint32_t type, uint32_t key, uint32_t value, uint32_t entries)
{
    union bpf_attr attr = {.map_type = type, .key_size = key, .value_size = value, .max_entries = entries};
    int fd = bpf(BPF_MAP_CREATE, &attr);
    if (fd < 0)
        refused("a map");
    return fd;
}

static void attach(int group, const struct bpf_insn *program, size_t length, uint32_t where)
{
    static char why[1 << 16];
    union bpf_attr load = {.prog_type = BPF_PROG_TYPE_CGROUP_SOCK_ADDR, .expected_attach_type = where};
    load.insns = (uintptr_t)program;
    load.insn_cnt = (uint32_t)length;
    load.license = (uintptr_t)"GPL";
    load.log_buf = (uintptr_t)why;
    load.log_size = sizeof why;
    load.log_level = 1;
    int fd = bpf(BPF_PROG_LOAD, &load);
    if (fd < 0 && errno == EACCES)
        die("the kernel finds fault with a program: %s", why);
    if (fd < 0)
        refused("a program of a control group");
    union bpf_attr attach = {.target_fd = (uint32_t)group, .attach_bpf_fd = (uint32_t)fd, .attach_type = where};
    if (bpf(BPF_PROG_ATTACH, &attach) < 0)
        refused("to attach it");
}

static struct sockaddr_in named(const char *text)
{
    char host[32];
    struct sockaddr_in at = {.sin_family = AF_INET};
    const char *colon = strchr(text, ':');
    if (colon == NULL || colon - text >= (int)sizeof host)
        die("%s is not ADDRESS:PORT", text);
    memcpy(host, text, (size_t)(colon - text));
    host[colon - text] = 0;
    if (inet_pton(AF_INET, host, &at.sin_addr) != 1)
        die("%s is not an address", host);
    at.sin_port = htons((uint16_t)atoi(colon + 1));
    return at;
}

int main(int argc, char **argv)
{
    if (argc != 5)
        die("service CGROUP ADDRESS:PORT BACKEND:PORT BACKEND:PORT");
    struct sockaddr_in service = named(argv[2]), first = named(argv[3]), second = named(argv[4]);
    int group = MUST(open(argv[1], O_RDONLY | O_DIRECTORY));
    int notes = new_map(BPF_MAP_TYPE_LRU_HASH, 16, 8, 65536);
    int counts = new_map(BPF_MAP_TYPE_ARRAY, 4, 8, COUNTERS);

    const struct bpf_insn on_connect[] = {
        MOV(R6, R1),
        LOAD(R0, R6, USER_IP4),
        UNLESS(R0, service.sin_addr.s_addr, 35),
        LOAD(R0, R6, USER_PORT),
        UNLESS(R0, service.sin_port, 33),
        CALL(get_socket_cookie),
        STORE64(FRAME, KEY, R0),
        CALL(get_prandom_u32),
        MOV(R8, R0),
        AND(R8, 1),
        SET(R1, first.sin_addr.s_addr),
        SET(R2, first.sin_port),
        UNLESS(R8, 1, 2),
        SET(R1, second.sin_addr.s_addr),
        SET(R2, second.sin_port),
        STORE(R6, USER_IP4, R1),
        STORE(R6, USER_PORT, R2),
        STORE(FRAME, KEY_IP4, R1),
        STORE(FRAME, KEY_PORT, R2),
        PUT(FRAME, VALUE, service.sin_addr.s_addr),
        PUT(FRAME, VALUE_PORT, service.sin_port),
        MAP(R1, notes),
        MOV(R2, FRAME),
        ADD(R2, KEY),
        MOV(R3, FRAME),
        ADD(R3, VALUE),
        SET(R4, BPF_ANY),
        CALL(map_update_elem),
        STORE(FRAME, COUNTER, R8),
        MAP(R1, counts),
        MOV(R2, FRAME),
        ADD(R2, COUNTER),
        CALL(map_lookup_elem),
        IF_NULL(R0, 2),
        SET(R1, 1),
        COUNT_ONE(R0, R1),
        ALLOW,
    };
    const struct bpf_insn on_name[] = {
        MOV(R6, R1),
        CALL(get_socket_cookie),
        STORE64(FRAME, KEY, R0),
        LOAD(R1, R6, USER_IP4),
        STORE(FRAME, KEY_IP4, R1),
        LOAD(R1, R6, USER_PORT),
        STORE(FRAME, KEY_PORT, R1),
        MAP(R1, notes),
        MOV(R2, FRAME),
        ADD(R2, KEY),
        CALL(map_lookup_elem),
        IF_NULL(R0, 13),
        LOAD(R1, R0, 0),
        STORE(R6, USER_IP4, R1),
        LOAD(R1, R0, 4),
        STORE(R6, USER_PORT, R1),
        PUT(FRAME, COUNTER, PEER_NAMES),
        MAP(R1, counts),
        MOV(R2, FRAME),
        ADD(R2, COUNTER),
        CALL(map_lookup_elem),
        IF_NULL(R0, 2),
        SET(R1, 1),
        COUNT_ONE(R0, R1),
        ALLOW,
    };
    attach(group, on_connect, LENGTH(on_connect), BPF_CGROUP_INET4_CONNECT);
    attach(group, on_name, LENGTH(on_name), BPF_CGROUP_INET4_GETPEERNAME);
    puts("ready");
    fflush(stdout);

    char byte;
    while (read(0, &byte, 1) > 0) {}
    for (uint32_t i = 0; i < COUNTERS; i++) {
        uint64_t count = 0;
        union bpf_attr look = {.map_fd = (uint32_t)counts, .key = (uintptr_t)&i, .value = (uintptr_t)&count};
        MUST(bpf(BPF_MAP_LOOKUP_ELEM, &look));
        printf("%s%llu", i ? " " : "counted ", (unsigned long long)count);
    }
    puts("");
    return 0;
}
