/* aboard [WORDS]: says whether this process is followed, and by what, and its arguments. */
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    char line[4096];
    const char *by = "nothing";
    FILE *maps = fopen("/proc/self/maps", "r");
    if (!maps)
        return 1;
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "/shortwire-raw"))
            by = "raw";
        else if (strstr(line, "/libshortwire.so"))
            by = "library";
    fclose(maps);
    printf("%s", by);
    for (int i = 1; i < argc; i++)
        printf(" %s", argv[i]);
    printf("\n");
    return 0;
}
