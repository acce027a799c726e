/* One step of Pursuit on float32 weights of the CPU: what pursuit_step.py writes to be read.

   KEEP, FORGET, SPIKE, SMALLEST and LARGEST are those of the law, given by the compiler's
   command line. Sums are of lanes in single precision within a block, of blocks in double. */

#include <math.h>
#include <stdint.h>

enum { BLOCK = 4096 };

void pursuit_move(float *restrict p, const float *restrict g, float *restrict v,
                  float *restrict h, float *restrict u, const float *restrict factors,
                  int64_t count, int decays, double *restrict signals)
{
    const float length = factors[0], keep = decays ? factors[1] : 1.0f, fade = factors[2];
    const float forth = factors[3], back = factors[4], hold = factors[5];
    double signal = 0.0, push = 0.0;
    for (int64_t start = 0; start < count; start += BLOCK) {
        const int64_t stop = start + BLOCK < count ? start + BLOCK : count;
        float along = 0.0f, ahead = 0.0f;
#pragma omp simd reduction(+ : along, ahead)
        for (int64_t i = start; i < stop; i++) {
            const float size = fabsf(g[i]), old = v[i], trail = h[i], lead = u[i], weight = p[i];
            float grad = size >= SMALLEST && size <= LARGEST ? g[i] : 0.0f;
            const float most = old > 0.0f ? SPIKE * sqrtf(FORGET * old) : LARGEST;
            grad = grad > most ? most : grad;
            grad = grad < -most ? -most : grad;
            const float square = grad == 0.0f ? old : KEEP * old + grad * grad;
            const float root = sqrtf(square);
            const float delta = length * grad / (root > 1e-30f ? root : 1e-30f);
            const float step = grad == 0.0f ? 0.0f : back * lead - forth * delta;
            along += grad * trail;
            ahead += grad * lead;
            v[i] = square;
            h[i] = (trail + step) * fade;
            u[i] = grad == 0.0f ? lead : hold * (lead - delta);
            p[i] = grad == 0.0f ? weight : weight * keep + step;
        }
        signal += along;
        push += ahead;
    }
    signals[0] = signal;
    signals[1] = push;
}
