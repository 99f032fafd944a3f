// One launch: reads a launch file, runs the kernel once per order, writes the buffers.
//
// The file is lines of text, then the bytes of all buffers, in the order of their lines:
//
//   kernel NAME
//   groups X Y Z
//   threads X Y Z
//   limit SECONDS          of the processor's time
//   threadgroup INDEX BYTES
//   buffer INDEX BYTES ALIGN
//   order round|lowest|highest|shuffled SEED POISON
//   only X Y Z
//   end
//
// `order` may repeat: each starts from the file's buffers. With `only` lines just these groups
// run. The output file holds all buffers after each order. Exit codes: 2 a fault of the kernel, 3
// a launch that can't be made.

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels.h"
#include "schedule.h"

#if defined(EMU_ADDRESS)
#include <sanitizer/asan_interface.h>
#endif

namespace emu {
namespace {

[[noreturn]] void refuse(const char* format, ...) {
    va_list list;
    va_start(list, format);
    std::fprintf(stderr, "emulation: ");
    std::vfprintf(stderr, format, list);
    std::fprintf(stderr, "\n");
    va_end(list);
    std::_Exit(3);
}

constexpr unsigned char kUntouched = 0xa5;
constexpr size_t kPage = 4096;

// Memory of exactly a number of bytes: what is beyond faults, or is looked at afterwards.
struct Buffer {
    int index = 0;
    size_t bytes = 0;
    size_t align = 16;
    std::vector<unsigned char> contents;
    unsigned char* whole = nullptr;
    size_t whole_bytes = 0;
    unsigned char* data = nullptr;

    // The base is aligned to `align` and to no larger power of two up to 16.
    void place() {
        const size_t shift = align < 16 ? align : 0;
#if defined(EMU_ADDRESS)
        whole_bytes = shift + bytes;
        whole = static_cast<unsigned char*>(std::malloc(whole_bytes));
        if (whole == nullptr) refuse("no memory for buffer %d", index);
        data = whole + shift;
#else
        // Data end as near to an unmapped page as the base's alignment allows.
        const size_t inner = (shift + bytes + 16 + kPage - 1) / kPage * kPage;
        whole_bytes = inner + 2 * kPage;
        void* memory = mmap(nullptr, whole_bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) refuse("no memory for buffer %d", index);
        whole = static_cast<unsigned char*>(memory);
        mprotect(whole, kPage, PROT_NONE);
        mprotect(whole + kPage + inner, kPage, PROT_NONE);
        data = whole + kPage + inner - (shift + bytes + 15) / 16 * 16 + shift;
#endif
    }

    void fill() {
#if !defined(EMU_ADDRESS)
        std::memset(whole + kPage, kUntouched, whole_bytes - 2 * kPage);
#endif
        if (bytes != 0) std::memcpy(data, contents.data(), bytes);
    }

    void check() const {
#if !defined(EMU_ADDRESS)
        for (const unsigned char* at = whole + kPage; at < whole + whole_bytes - kPage; at++) {
            if (at == data) at += bytes;
            if (at < whole + whole_bytes - kPage && *at != kUntouched) {
                std::fprintf(stderr, "emulation: %s: byte %td of buffer %d, which has %zu, was "
                             "written\n", context, at - data, index, bytes);
                std::_Exit(2);
            }
        }
#endif
    }
};

std::vector<Buffer> buffers;

struct Run {
    Order order;
    uint64_t seed;
    int poison;
};

Order order_named(const std::string& name) {
    if (name == "round") return Order::round;
    if (name == "lowest") return Order::lowest;
    if (name == "highest") return Order::highest;
    if (name == "shuffled") return Order::shuffled;
    refuse("no order is named `%s`", name.c_str());
}

const Kernel& kernel_named(const char* name) {
    for (int i = 0; i < kernel_count; i++) {
        if (std::strcmp(kernels[i].name, name) == 0) return kernels[i];
    }
    refuse("no kernel is named `%s`", name);
}

}  // namespace

void* buffer(int index, size_t bytes) {
    for (Buffer& b : buffers) {
        if (b.index != index) continue;
        if (b.bytes < bytes)
            fail({"argument", "kernel", 0}, "[[buffer(%d)]] has %zu bytes, its type needs %zu",
                 index, b.bytes, bytes);
        return b.data;
    }
    fail({"argument", "kernel", 0}, "nothing is bound to [[buffer(%d)]]", index);
}

static int run(const char* input, const char* output) {
    FILE* in = std::fopen(input, "rb");
    if (in == nullptr) refuse("can't read `%s`", input);
    static char name[256];
    Launch launch{};
    std::vector<Run> runs;
    struct Group { uint32_t at[3]; };
    std::vector<Group> only;
    char line[512];
    for (;;) {
        if (std::fgets(line, sizeof line, in) == nullptr) refuse("`%s` has no end line", input);
        unsigned a = 0, b = 0, c = 0;
        size_t bytes = 0, align = 0;
        char word[32];
        unsigned long long seed = 0;
        int dirt = 0;
        if (std::strcmp(line, "end\n") == 0) break;
        if (std::sscanf(line, "kernel %255s", name) == 1) continue;
        if (std::sscanf(line, "groups %u %u %u", &a, &b, &c) == 3) {
            launch.groups[0] = a, launch.groups[1] = b, launch.groups[2] = c;
        } else if (std::sscanf(line, "threads %u %u %u", &a, &b, &c) == 3) {
            launch.threads[0] = a, launch.threads[1] = b, launch.threads[2] = c;
        } else if (std::sscanf(line, "limit %u", &a) == 1) {
            // Of this process's own time; of a busy machine's, ten times as much.
            const rlimit limit{a, a};
            setrlimit(RLIMIT_CPU, &limit);
            alarm(10 * a);
        } else if (std::sscanf(line, "threadgroup %u %u", &a, &b) == 2) {
            if (a >= kThreadgroupArguments || b % 16 != 0)
                refuse("threadgroup argument %u of %u bytes: lengths are multiples of 16", a, b);
            threadgroup_bytes[a] = b;
        } else if (std::sscanf(line, "buffer %u %zu %zu", &a, &bytes, &align) == 3) {
            if (a > 30) refuse("buffer index %u: slots are 0 to 30", a);
            Buffer buffer;
            buffer.index = static_cast<int>(a);
            buffer.bytes = bytes;
            buffer.align = align;
            buffers.push_back(std::move(buffer));
        } else if (std::sscanf(line, "order %31s %llu %d", word, &seed, &dirt) == 3) {
            runs.push_back({order_named(word), seed, dirt});
        } else if (std::sscanf(line, "only %u %u %u", &a, &b, &c) == 3) {
            only.push_back({{a, b, c}});
        } else {
            refuse("a launch line that nobody knows: %s", line);
        }
    }
    for (Buffer& b : buffers) {
        b.contents.resize(b.bytes);
        if (b.bytes != 0 && std::fread(b.contents.data(), b.bytes, 1, in) != 1)
            refuse("`%s` ends before buffer %d does", input, b.index);
        b.place();
    }
    std::fclose(in);
    context = name;
    const Kernel& kernel = kernel_named(name);
    const uint32_t threads = launch.threads[0] * launch.threads[1] * launch.threads[2];
    if (kernel.threads != 0 && kernel.threads != threads)
        refuse("%s is declared for %u threads per group and launched with %u", name,
               kernel.threads, threads);
    launch.kernel = kernel.run;
    if (only.empty()) {
        for (uint32_t z = 0; z < launch.groups[2]; z++)
            for (uint32_t y = 0; y < launch.groups[1]; y++)
                for (uint32_t x = 0; x < launch.groups[0]; x++) only.push_back({{x, y, z}});
    }
    FILE* out = std::fopen(output, "wb");
    if (out == nullptr) refuse("can't write `%s`", output);
    for (const Run& each : runs) {
        for (Buffer& b : buffers) b.fill();
        launch.order = each.order;
        launch.seed = each.seed;
        poison = each.poison;
        prepare(launch);
        // Groups, too, run in both directions.
        const bool backwards = each.order == Order::highest;
        for (size_t i = 0; i < only.size(); i++)
            run_group(launch, only[backwards ? only.size() - 1 - i : i].at);
        finish_launch();
        for (const Buffer& b : buffers) {
            b.check();
            if (b.bytes != 0 && std::fwrite(b.data, b.bytes, 1, out) != 1)
                refuse("can't write `%s`", output);
        }
    }
    if (std::fclose(out) != 0) refuse("can't write `%s`", output);
    return 0;
}

}  // namespace emu

int main(int count, char** words) {
    if (count != 3) {
        std::fprintf(stderr, "usage: %s LAUNCH OUTPUT\n", words[0]);
        return 3;
    }
    return emu::run(words[1], words[2]);
}
