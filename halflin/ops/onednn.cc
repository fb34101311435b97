#include "halflin/ops/onednn.h"

#include <dlfcn.h>

namespace halflin {

OneDnnThread::OneDnnThread(const dnnl::engine& engine) : stream(engine) {
  // Looked up at run time: a oneDNN built without OpenMP has no such symbol and needs none.
  using SetThreads = void (*)(int);
  if (void* symbol = dlsym(RTLD_DEFAULT, "omp_set_num_threads")) {
    reinterpret_cast<SetThreads>(symbol)(1);
  }
}

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

OneDnnThread& onednn_thread() {
  thread_local OneDnnThread thread(cpu_engine());
  return thread;
}

}  // namespace halflin
