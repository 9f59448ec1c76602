/* Starts a program as a service manager does whose unit has these settings:
 *   confine [container] [families=A,B] [calls=FILE] [mdwe] [onepage] [users] [noproc] [user=N] [fsize=N] [preload=LIB] -- PROGRAM ARGS
 * container: what the published profile of Docker and containerd refuses a program without capabilities.
 * families: RestrictAddressFamilies (inet, inet6, unix, netlink); calls: SystemCallFilter, the names
 * that are allowed, one a line; mdwe: MemoryDenyWriteExecute;
 * onepage, as no manager has it: a single page may not be made code by mprotect; users: PrivateUsers, which knows root
 * and the user alone; noproc: another root directory without /proc; user: User; fsize: LimitFSIZE. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void fail(const char *what) {
    perror(what);
    _exit(120);
}

static struct sock_filter code[2048];
static unsigned n;

static void add(unsigned short op, unsigned k, unsigned char t, unsigned char f) {
    code[n++] = (struct sock_filter){op, t, f, k};
}

#define LOAD(field) add(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field), 0, 0)
#define RETURN(value) add(BPF_RET | BPF_K, value, 0, 0)
#define REFUSE(error) RETURN(SECCOMP_RET_ERRNO | (error))
#define EQUALS(value, otherwise) add(BPF_JMP | BPF_JEQ | BPF_K, value, 0, otherwise)

static void install(void) {
    struct sock_fprog program = {n, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) fail("no_new_privs");
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) fail("seccomp");
    n = 0;
}

/* Sockets of other families are refused as the manager does. */
static void families(char *list) {
    LOAD(nr);
    EQUALS(SYS_socket, 1);
    add(BPF_JMP | BPF_JA, 1, 0, 0);
    RETURN(SECCOMP_RET_ALLOW);
    LOAD(args[0]);
    for (char *name = strtok(list, ","); name; name = strtok(NULL, ",")) {
        int family = !strcmp(name, "inet") ? AF_INET : !strcmp(name, "inet6") ? AF_INET6
            : !strcmp(name, "unix") ? AF_UNIX : !strcmp(name, "netlink") ? AF_NETLINK : -1;
        EQUALS((unsigned)family, 1);
        RETURN(SECCOMP_RET_ALLOW);
    }
    REFUSE(EAFNOSUPPORT);
    install();
}

/* Behind a look at the call: it is refused with all of these bits in its third argument. */
static void refuse_access(unsigned mask) {
    LOAD(args[2]);
    add(BPF_ALU | BPF_AND | BPF_K, mask, 0, 0);
    EQUALS(mask, 1);
    REFUSE(EPERM);
}

/* Memory that is writable and executable, and memory that becomes executable. */
static void mdwe(void) {
    unsigned calls[] = {SYS_mmap, SYS_mprotect, SYS_pkey_mprotect};
    for (int i = 0; i < 3; i++) {
        unsigned mask = i == 0 ? PROT_EXEC | PROT_WRITE : PROT_EXEC;
        LOAD(nr);
        EQUALS(calls[i], 4);
        refuse_access(mask);
    }
    RETURN(SECCOMP_RET_ALLOW);
    install();
}

/* A single page that becomes executable. */
static void onepage(void) {
    LOAD(nr);
    EQUALS(SYS_mprotect, 6);
    LOAD(args[1]);
    EQUALS((unsigned)sysconf(_SC_PAGESIZE), 4);
    refuse_access(PROT_EXEC);
    RETURN(SECCOMP_RET_ALLOW);
    install();
}

static void calls(const char *path) {
    void *lib = dlopen("libseccomp.so.2", RTLD_NOW);
    int (*number)(const char *) = lib ? dlsym(lib, "seccomp_syscall_resolve_name") : NULL;
    FILE *file = fopen(path, "r");
    if (!number || !file) fail("system calls");
    char name[128];
    LOAD(nr);
    while (fscanf(file, "%127s", name) == 1 && n < 2000) {
        int call = number(name);
        if (call < 0) continue;
        EQUALS((unsigned)call, 1);
        RETURN(SECCOMP_RET_ALLOW);
    }
    REFUSE(EPERM);
    fclose(file);
    install();
}

/* Calls that the default profile of container runtimes does not list, those with conditions, and all that are newer. */
static void container(void) {
    static const unsigned refused[] = {
        SYS_acct, SYS_add_key, SYS_bpf, SYS_chroot, SYS_clock_settime, SYS_delete_module, SYS_fanotify_init,
        SYS_finit_module, SYS_fsconfig, SYS_fsmount, SYS_fsopen, SYS_fspick, SYS_get_mempolicy, SYS_init_module,
        SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register, SYS_ioperm, SYS_iopl, SYS_kcmp, SYS_kexec_file_load,
        SYS_kexec_load, SYS_keyctl, SYS_lookup_dcookie, SYS_mbind, SYS_migrate_pages, SYS_mount, SYS_mount_setattr,
        SYS_move_mount, SYS_move_pages, SYS_nfsservctl, SYS_open_by_handle_at, SYS_open_tree, SYS_perf_event_open,
        SYS_personality, SYS_pidfd_getfd, SYS_pivot_root, SYS_process_madvise, SYS_quotactl, SYS_reboot, SYS_request_key,
        SYS_set_mempolicy, SYS_setdomainname, SYS_sethostname, SYS_setns, SYS_settimeofday, SYS_swapoff, SYS_swapon,
        SYS_syslog, SYS_umount2, SYS_unshare, SYS_uselib, SYS_userfaultfd, SYS_ustat, SYS_vhangup,
    };
    LOAD(nr);
    for (unsigned i = 0; i < sizeof refused / sizeof *refused; i++) {
        EQUALS(refused[i], 1);
        REFUSE(EPERM);
    }
    EQUALS(SYS_clone3, 1);
    REFUSE(ENOSYS);
    /* The last one that the profile lists is futex_waitv. */
    add(BPF_JMP | BPF_JGT | BPF_K, 449, 0, 1);
    REFUSE(EPERM);
    EQUALS(SYS_clone, 3);
    LOAD(args[0]);
    add(BPF_JMP | BPF_JSET | BPF_K, 0x7e020000, 0, 5);
    REFUSE(EPERM);
    EQUALS(SYS_socket, 3);
    LOAD(args[0]);
    EQUALS(AF_VSOCK, 1);
    REFUSE(EPERM);
    RETURN(SECCOMP_RET_ALLOW);
    install();
}

static void write_to(int pid, const char *what, const char *text) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, what);
    int fd = open(path, O_WRONLY);
    if (fd < 0 || write(fd, text, strlen(text)) < 0) fail(path);
    close(fd);
}

/* A user namespace that knows root and one user. Who is outside of it has to say so. */
static void private_users(unsigned user) {
    int ready[2], self = getpid();
    char byte = 0, map[64];
    snprintf(map, sizeof map, "0 0 1\n%u %u 1\n", user, user);
    if (pipe(ready) != 0) fail("pipe");
    int child = fork();
    if (child == 0) {
        if (read(ready[0], &byte, 1) != 1) _exit(1);
        write_to(self, "gid_map", user ? map : "0 0 1\n");
        write_to(self, "uid_map", user ? map : "0 0 1\n");
        _exit(0);
    }
    int status;
    if (unshare(CLONE_NEWUSER) != 0) fail("a user namespace");
    if (write(ready[1], &byte, 1) != 1) fail("pipe");
    if (waitpid(child, &status, 0) < 0 || status != 0) fail("its users");
    close(ready[0]);
    close(ready[1]);
}

int main(int argc, char **argv) {
    unsigned user = 0;
    int is_private = 0, denies = 0, denies_page = 0, is_container = 0;
    char *families_of = NULL, *calls_in = NULL, *preload = NULL;
    int i = 1;
    for (; i < argc && strcmp(argv[i], "--") != 0; i++) {
        char *value = strchr(argv[i], '=');
        value = value ? value + 1 : "";
        if (!strncmp(argv[i], "families=", 9)) families_of = value;
        else if (!strncmp(argv[i], "calls=", 6)) calls_in = value;
        else if (!strncmp(argv[i], "user=", 5)) user = strtoul(value, NULL, 10);
        else if (!strncmp(argv[i], "preload=", 8)) preload = value;
        else if (!strncmp(argv[i], "fsize=", 6)) {
            struct rlimit limit = {strtoul(value, NULL, 10), strtoul(value, NULL, 10)};
            if (setrlimit(RLIMIT_FSIZE, &limit) != 0) fail("fsize");
        } else if (!strcmp(argv[i], "container")) is_container = 1;
        else if (!strcmp(argv[i], "mdwe")) denies = 1;
        else if (!strcmp(argv[i], "onepage")) denies_page = 1;
        else if (!strcmp(argv[i], "users")) is_private = 1;
        else if (!strcmp(argv[i], "noproc")) {
            if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0
                || mount("none", "/proc", "tmpfs", 0, NULL) != 0)
                fail("a system without /proc");
        }
        else {
            fprintf(stderr, "confine: %s?\n", argv[i]);
            return 120;
        }
    }
    if (is_private) private_users(user);
    if (user && ((!is_private && setgroups(0, NULL) != 0) || setresgid(user, user, user) != 0
                 || setresuid(user, user, user) != 0))
        fail("another user");
    if (is_container) container();
    if (denies) mdwe();
    if (denies_page) onepage();
    if (families_of) families(families_of);
    if (calls_in) calls(calls_in);
    if (preload) setenv("LD_PRELOAD", preload, 1);
    execvp(argv[i + 1], argv + i + 1);
    fail(argv[i + 1]);
}
