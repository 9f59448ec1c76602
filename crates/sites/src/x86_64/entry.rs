//! Where stubs lead to: what every front does there alike, before and behind a function of its own.

/// Assembly: with the end of a stack of ours in r11 it goes there, keeps what the kernel keeps over a
/// call (general registers, and the lower 128 bits of vector registers), calls `{answer}` with a
/// [`Call`](crate::Call), and comes back to the program's stack. Where the program goes on is in rcx then.
#[macro_export]
macro_rules! keep_registers {
    () => {
        concat!(
            "xchg rsp, r11\n",
            "push r11\n",
            "push rcx\n",
            "push r9\n",
            "push r8\n",
            "push r10\n",
            "push rdx\n",
            "push rsi\n",
            "push rdi\n",
            "push rax\n",
            "mov rdi, rsp\n",
            // Behind nine words; the stack is aligned again.
            "sub rsp, 264\n",
            "movaps [rsp], xmm0\n",
            "movaps [rsp + 16], xmm1\n",
            "movaps [rsp + 32], xmm2\n",
            "movaps [rsp + 48], xmm3\n",
            "movaps [rsp + 64], xmm4\n",
            "movaps [rsp + 80], xmm5\n",
            "movaps [rsp + 96], xmm6\n",
            "movaps [rsp + 112], xmm7\n",
            "movaps [rsp + 128], xmm8\n",
            "movaps [rsp + 144], xmm9\n",
            "movaps [rsp + 160], xmm10\n",
            "movaps [rsp + 176], xmm11\n",
            "movaps [rsp + 192], xmm12\n",
            "movaps [rsp + 208], xmm13\n",
            "movaps [rsp + 224], xmm14\n",
            "movaps [rsp + 240], xmm15\n",
            "call {answer}\n",
            "movaps xmm0, [rsp]\n",
            "movaps xmm1, [rsp + 16]\n",
            "movaps xmm2, [rsp + 32]\n",
            "movaps xmm3, [rsp + 48]\n",
            "movaps xmm4, [rsp + 64]\n",
            "movaps xmm5, [rsp + 80]\n",
            "movaps xmm6, [rsp + 96]\n",
            "movaps xmm7, [rsp + 112]\n",
            "movaps xmm8, [rsp + 128]\n",
            "movaps xmm9, [rsp + 144]\n",
            "movaps xmm10, [rsp + 160]\n",
            "movaps xmm11, [rsp + 176]\n",
            "movaps xmm12, [rsp + 192]\n",
            "movaps xmm13, [rsp + 208]\n",
            "movaps xmm14, [rsp + 224]\n",
            "movaps xmm15, [rsp + 240]\n",
            "add rsp, 264\n",
            "pop rax\n",
            "pop rdi\n",
            "pop rsi\n",
            "pop rdx\n",
            "pop r10\n",
            "pop r8\n",
            "pop r9\n",
            "pop rcx\n",
            "pop rsp\n",
        )
    };
}
