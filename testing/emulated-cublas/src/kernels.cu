// What the manual of cuBLAS says of its sgemm, a thread an element.
// `backend-cuda/compile-kernels` makes `kernels.ptx` of it.

typedef unsigned int u32;
typedef long long s64;

// c = alpha a b + beta c, stored by columns of lda, ldb and ldc elements; a and b transposed where
// it says so. The second dimension of the grid are products with matrices so far apart.
extern "C" __global__ void sgemm(u32 transposes_a, u32 transposes_b, u32 m, u32 n, u32 k, float alpha,
                                 const float *a, u32 lda, s64 stride_a, const float *b, u32 ldb,
                                 s64 stride_b, float beta, float *c, u32 ldc, s64 stride_c) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= m * n) return;
    a += blockIdx.y * stride_a;
    b += blockIdx.y * stride_b;
    c += blockIdx.y * stride_c;
    u32 row = at % m, column = at / m;
    float sum = 0;
    for (u32 term = 0; term < k; term++)
        sum += a[transposes_a ? row * lda + term : term * lda + row] *
               b[transposes_b ? term * ldb + column : column * ldb + term];
    float *to = c + column * ldc + row;
    // What is multiplied by zero need not be a number.
    *to = alpha * sum + (beta == 0 ? 0 : beta * *to);
}
