// What cuda/mma.cuh says in PTX, for the CPU: asynchronous copies, and the tensor core's product with the distribution
// of its operands over a warp's lanes (PTX ISA, mma.m16n8k16 and ldmatrix).
#pragma once

#include <cstring>

#include "cuda/emu/emu.h"

namespace grt::emu {

// Of 16 bytes; 16 zeros where `from` is null.
struct AsyncCopy {
  void* to;
  const void* from;
};
void start_copy(const AsyncCopy& copy, const char* file, int line);
void commit_copies();
// The oldest copy that is not of the `keep` groups committed last, or not committed; false if there is none.
bool next_copy(unsigned keep, AsyncCopy* copy);

// Until somebody waits for it a copy has left nothing but NaNs, so that what reads too early shows; and it writes from
// the first moment, so that what still reads is seen to race with it.
inline void copy_async(void* to, const void* from, bool present = true, const char* file = __builtin_FILE(),
                       int line = __builtin_LINE()) {
  start_copy({to, present ? from : nullptr}, file, line);
  std::memset(to, 0xff, 16);
}
template <int keep>
void wait_copies() {
  for (AsyncCopy copy; next_copy(keep, &copy);) {
    if (copy.from)
      std::memcpy(copy.to, copy.from, 16);
    else
      std::memset(copy.to, 0, 16);
  }
}

inline float low_half(std::uint32_t pair) { return __builtin_bit_cast(float, pair << 16); }
inline float high_half(std::uint32_t pair) { return __builtin_bit_cast(float, pair & 0xffff0000u); }

struct Product {
  float* d;
  const std::uint32_t *a, *b;
};
GRT_EMU_UNSEEN inline void multiply_all(void** arguments, unsigned) {
  float a[16][16], b[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto* const mine = static_cast<const Product*>(arguments[lane]);
    const int g = lane / 4, t = 2 * (lane % 4);
    for (int i = 0; i < 4; ++i) {
      float* const pair = &a[g + i % 2 * 8][t + i / 2 * 8];
      pair[0] = low_half(mine->a[i]);
      pair[1] = high_half(mine->a[i]);
    }
    for (int i = 0; i < 2; ++i) {
      b[t + i * 8][g] = low_half(mine->b[i]);
      b[t + i * 8 + 1][g] = high_half(mine->b[i]);
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    float* const d = static_cast<const Product*>(arguments[lane])->d;
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = 2 * (lane % 4) + i % 2;
      float sum = 0;
      for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
      d[i] += sum;
    }
  }
}
inline void mma_bf16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                     const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  Product argument{d, a, b};
  warp_meeting(0xffffffffu, "mma.sync", &multiply_all, &argument, false, file, line);
}

// Each lane brings a row of eight; lane l takes of matrix i the elements 2 (l % 4), + 1 of row l / 4, or of column l /
// 4 if it is transposed.
struct MatrixRow {
  std::uint16_t row[8];
  std::uint32_t result[4];
};
template <bool transposed>
GRT_EMU_UNSEEN void distribute(void** arguments, unsigned) {
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i) {
      const int g = lane / 4, t = 2 * (lane % 4);
      std::uint32_t pair = 0;
      for (int half = 1; half >= 0; --half) {
        const int row = transposed ? t + half : g, column = transposed ? g : t + half;
        pair = pair << 16 | static_cast<const MatrixRow*>(arguments[i * 8 + row])->row[column];
      }
      static_cast<MatrixRow*>(arguments[lane])->result[i] = pair;
    }
}
template <bool transposed>
void load_matrices(std::uint32_t (&result)[4], const void* row, const char* file = __builtin_FILE(),
                   int line = __builtin_LINE()) {
  if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0)
    fatal("ldmatrix at %s:%d: misaligned address %p", file, line, row);
  MatrixRow argument;
  std::memcpy(argument.row, row, 16);  // by the lane itself: a sanitizer sees it
  warp_meeting(0xffffffffu, transposed ? "ldmatrix.trans" : "ldmatrix", &distribute<transposed>, &argument, false, file,
               line);
  std::memcpy(result, argument.result, 16);
}

}  // namespace grt::emu
