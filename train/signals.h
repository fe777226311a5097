// SIGINT, SIGTERM, SIGHUP and SIGUSR1 as a question instead of an end: while a SignalGuard lives, the first one is only
// remembered; the second ends the process at once. One that the process was started to ignore (nohup) stays ignored.
// SIGPIPE is ignored meanwhile. (SIGUSR1: mpirun hands it on to all ranks and gives them the time they need, and batch
// systems send it before a time limit.)
#pragma once

namespace grt {

class SignalGuard {
 public:
  SignalGuard();
  ~SignalGuard();
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;

  int received() const;  // the signal's number, or 0

 private:
  void (*pipe_)(int);  // what SIGPIPE did before
};

}  // namespace grt
