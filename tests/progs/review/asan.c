// gcc's AddressSanitizer. Plain: asan ok.
// cc: -fsanitize=address
#include "t.h"
int main()
{
    int a, b;
    ready2(&a, &b);
    printf("asan ok\n");
    return 0;
}
