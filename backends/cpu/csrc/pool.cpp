// A small thread pool of our own. GNU OpenMP deadlocks in a forked child once the parent has used it; here the child
// simply starts with a fresh pool. Tasks are handed out in ascending order, which the backward's ordered sums rely on.
#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "api.h"

namespace fm {
namespace {

struct Job {
    int64_t tasks;
    void (*fn)(void*, int64_t, int);
    void* ctx;
    std::atomic<int64_t> next{0};

    void drain(int worker) {
        for (int64_t t; (t = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) fn(ctx, t, worker);
    }
};

class Pool {
   public:
    // False if the pool is busy with another caller's job: then that caller's threads have the cores already.
    bool try_run(Job& job, int threads) {
        if (!busy_.try_lock()) return false;
        std::lock_guard<std::mutex> owner(busy_, std::adopt_lock);
        const int helpers = grow(threads - 1);
        {
            std::lock_guard<std::mutex> lock(m_);
            job_ = &job;
            wanted_ = running_ = helpers;
            ++epoch_;
        }
        wake_.notify_all();
        job.drain(0);
        std::unique_lock<std::mutex> lock(m_);
        done_.wait(lock, [this] { return running_ == 0; });
        job_ = nullptr;
        return true;
    }

   private:
    int grow(int helpers) {
        while (size_ < helpers) {
            try {
                std::thread(&Pool::loop, this, size_ + 1, epoch_).detach();
            } catch (const std::system_error&) {
                break;  // no more threads to be had: go on with those there are
            }
            ++size_;
        }
        return helpers < size_ ? helpers : size_;
    }

    void loop(int worker, uint64_t seen) {
        std::unique_lock<std::mutex> lock(m_);
        for (;;) {
            wake_.wait(lock, [&] { return epoch_ != seen; });
            seen = epoch_;
            if (worker > wanted_) continue;
            Job* job = job_;
            lock.unlock();
            job->drain(worker);
            lock.lock();
            if (--running_ == 0) done_.notify_one();
        }
    }

    std::mutex busy_, m_;
    std::condition_variable wake_, done_;
    Job* job_ = nullptr;
    int wanted_ = 0, running_ = 0, size_ = 0;
    uint64_t epoch_ = 0;
};

// Never destroyed: its threads may still sleep in it while the process exits, and a forked child has none of them.
std::atomic<Pool*> g_pool{nullptr};

void after_fork_in_child() { g_pool.store(new Pool, std::memory_order_release); }

Pool& pool() {
    static const bool once = [] {
        g_pool.store(new Pool, std::memory_order_release);
        pthread_atfork(nullptr, nullptr, after_fork_in_child);
        return true;
    }();
    (void)once;
    return *g_pool.load(std::memory_order_acquire);
}

}  // namespace

void parallel(int64_t tasks, int threads, void (*fn)(void*, int64_t, int), void* ctx) {
    if (tasks <= 0) return;
    Job job{tasks, fn, ctx};
    if (threads > tasks) threads = static_cast<int>(tasks);
    if (threads <= 1 || !pool().try_run(job, threads)) job.drain(0);
}

void* scratch_alloc(size_t bytes) {
    const size_t rounded = (bytes + 63) / 64 * 64;
    void* p = std::aligned_alloc(64, rounded ? rounded : 64);
    if (!p) throw std::bad_alloc();
    return p;
}

void scratch_free(void* p) noexcept { std::free(p); }

}  // namespace fm
