/* One step of Pursuit on float32 weights of the CPU: what pursuit_step.py writes to be read.

   KEEP, FORGET, SPIKE, SMALLEST and LARGEST are those of the law, given by the compiler's
   command line. Sums are of lanes in single precision within a block, of blocks in double. */

#include <math.h>
#include <stdint.h>

enum { BLOCK = 4096 };

double pursuit_move(float *restrict p, const float *restrict g, float *restrict v,
                    float *restrict h, const float *restrict factors, int64_t count, int decays)
{
    const float length = factors[0], keep = decays ? factors[1] : 1.0f, fade = factors[2];
    double signal = 0.0;
    for (int64_t start = 0; start < count; start += BLOCK) {
        const int64_t stop = start + BLOCK < count ? start + BLOCK : count;
        float block = 0.0f;
#pragma omp simd reduction(+ : block)
        for (int64_t i = start; i < stop; i++) {
            const float size = fabsf(g[i]), old = v[i], trail = h[i];
            float grad = size >= SMALLEST && size <= LARGEST ? g[i] : 0.0f;
            const float most = old > 0.0f ? SPIKE * sqrtf(FORGET * old) : LARGEST;
            grad = grad > most ? most : grad;
            grad = grad < -most ? -most : grad;
            const float square = grad == 0.0f ? old : KEEP * old + grad * grad;
            const float root = sqrtf(square);
            const float delta = length * grad / (root > 1e-30f ? root : 1e-30f);
            block += grad * trail;
            v[i] = square;
            h[i] = (trail - delta) * fade;
            p[i] = p[i] * keep - delta;
        }
        signal += block;
    }
    return signal;
}
