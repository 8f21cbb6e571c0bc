//! The pool as its users rely on it: tasks with a shared count, and requests of
//! several callers.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use rollout_core::simulator::Fixed;
use rollout_core::{Arrays, Data, Engine, Input, Model, Output, Request, Simulation, Slot};
use rollout_pool::{Pool, RunError, WaitError, default_nthread, worker_id};
use rollout_tests::toy::{self, Toy};
use rollout_tests::waiting::{Gate, Waiting, eventually, one_step_each};
use rollout_tests::{bits, thread_name};

#[test]
fn tasks_are_counted() {
    let pool = Pool::new(2).unwrap();
    let ran = Arc::new(AtomicUsize::new(0));
    for round in 1..=100 {
        let before = pool.count();
        for _ in 0..10 {
            let ran = Arc::clone(&ran);
            pool.schedule(move || {
                ran.fetch_add(1, Ordering::Relaxed);
            });
        }
        pool.wait_count(before + 10).unwrap();
        assert_eq!(ran.load(Ordering::Relaxed), round * 10);
    }
    assert_eq!(pool.count(), 1000);
    pool.reset_count();
    assert_eq!(pool.count(), 0);
    pool.wait_count(0).unwrap();
}

#[test]
fn tasks_progress_without_a_waiter() {
    let pool = Pool::new(1).unwrap();
    for _ in 0..5 {
        pool.schedule(|| {});
    }
    eventually("the count of 5", || pool.count() == 5);
}

#[test]
fn tasks_run_in_the_order_of_scheduling_on_one_thread() {
    let pool = Pool::new(1).unwrap();
    let order = Arc::new(Mutex::new(vec![]));
    for i in 0..100 {
        let order = Arc::clone(&order);
        pool.schedule(move || order.lock().unwrap().push(i));
    }
    pool.wait_count(100).unwrap();
    assert_eq!(*order.lock().unwrap(), (0..100).collect::<Vec<_>>());
}

#[test]
fn worker_ids_are_in_range_inside_tasks_and_minus_one_outside() {
    let pool = Pool::new(3).unwrap();
    let (send, ids) = mpsc::channel();
    let barrier = Arc::new(Barrier::new(3));
    for _ in 0..3 {
        let (send, barrier) = (send.clone(), Arc::clone(&barrier));
        pool.schedule(move || {
            barrier.wait();
            send.send(worker_id()).unwrap();
        });
    }
    pool.wait_count(3).unwrap();
    let ids: HashSet<i32> = ids.try_iter().collect();
    assert_eq!(ids, HashSet::from([0, 1, 2]));
    assert_eq!(worker_id(), -1);
}

#[test]
fn several_threads_wait_for_one_count() {
    let pool = Pool::new(2).unwrap();
    let gate = Arc::new(AtomicBool::new(false));
    thread::scope(|scope| {
        let waiters: Vec<_> = (1..=4)
            .map(|value| {
                let pool = &pool;
                scope.spawn(move || {
                    pool.wait_count(value).unwrap();
                    assert!(pool.count() >= value);
                })
            })
            .collect();
        for _ in 0..4 {
            let gate = Arc::clone(&gate);
            pool.schedule(move || {
                while !gate.load(Ordering::Acquire) {
                    thread::yield_now();
                }
            });
        }
        thread::sleep(Duration::from_millis(20));
        assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
        gate.store(true, Ordering::Release);
    });
}

#[test]
fn a_pool_of_one_thread_takes_a_long_task_and_those_behind_it() {
    let pool = Pool::new(1).unwrap();
    let (open, gate) = mpsc::channel::<()>();
    pool.schedule(move || gate.recv().unwrap());
    pool.schedule(|| {});
    assert_eq!(pool.count(), 0);
    open.send(()).unwrap();
    pool.wait_count(2).unwrap();
}

#[test]
fn tasks_schedule_tasks() {
    let pool = Arc::new(Pool::new(2).unwrap());
    for _ in 0..10 {
        let inner = Arc::clone(&pool);
        pool.schedule(move || {
            for _ in 0..10 {
                inner.schedule(|| {});
            }
        });
    }
    pool.wait_count(110).unwrap();
}

#[test]
fn a_panic_in_a_task_is_counted_and_told_once() {
    let pool = Pool::new(2).unwrap();
    pool.schedule(|| std::panic::panic_any("on purpose".to_owned()));
    pool.schedule(|| {});
    assert_eq!(
        pool.wait_count(2),
        Err(WaitError::TaskPanicked("on purpose".to_owned()))
    );
    pool.schedule(|| {});
    assert_eq!(pool.wait_count(3), Ok(()));
}

#[test]
fn waiting_on_a_pool_from_its_own_task_is_refused_and_on_another_works() {
    let pool = Arc::new(Pool::new(1).unwrap());
    let other = Arc::new(Pool::new(1).unwrap());
    let (send, results) = mpsc::channel();
    let (own, second) = (Arc::clone(&pool), Arc::clone(&other));
    pool.schedule(move || {
        send.send(own.wait_count(5)).unwrap();
        second.schedule(|| {});
        send.send(second.wait_count(1)).unwrap();
    });
    pool.wait_count(1).unwrap();
    assert_eq!(results.recv(), Ok(Err(WaitError::WouldDeadlock)));
    assert_eq!(results.recv(), Ok(Ok(())));
}

#[test]
fn a_pool_without_threads_runs_tasks_inside_schedule() {
    let pool = Pool::new(0).unwrap();
    let here = thread::current().id();
    let (send, thread_ids) = mpsc::channel();
    pool.schedule(move || send.send(thread::current().id()).unwrap());
    assert_eq!(thread_ids.try_recv(), Ok(here));
    assert_eq!(pool.count(), 1);
    assert_eq!(pool.wait_count(1), Ok(()));
    assert_eq!(pool.wait_count(2), Err(WaitError::WouldDeadlock));
}

#[test]
fn dropping_a_pool_runs_the_tasks_that_were_scheduled() {
    let ran = Arc::new(AtomicUsize::new(0));
    let pool = Pool::new(2).unwrap();
    for _ in 0..100 {
        let ran = Arc::clone(&ran);
        pool.schedule(move || {
            thread::sleep(Duration::from_micros(100));
            ran.fetch_add(1, Ordering::Relaxed);
        });
    }
    drop(pool);
    assert_eq!(ran.load(Ordering::Relaxed), 100);
}

#[test]
fn a_pool_can_be_dropped_in_its_own_task() {
    let ran = Arc::new(AtomicUsize::new(0));
    let pool = Arc::new(Pool::new(2).unwrap());
    let (inside, count) = (Arc::clone(&pool), Arc::clone(&ran));
    let (send, dropped) = mpsc::channel::<()>();
    pool.schedule(move || {
        dropped.recv().unwrap();
        count.fetch_add(1, Ordering::Relaxed);
        drop(inside);
        count.fetch_add(1, Ordering::Relaxed);
    });
    drop(pool);
    send.send(()).unwrap();
    eventually("the task's end", || ran.load(Ordering::Relaxed) == 2);
}

#[test]
fn pools_come_and_go() {
    for nthread in [0, 1, 2, 5] {
        for _ in 0..50 {
            let pool = Pool::new(nthread).unwrap();
            assert_eq!(pool.num_threads(), nthread);
            pool.schedule(|| {});
        }
    }
    assert!(default_nthread() >= 1);
}

#[test]
fn worker_threads_have_names_and_leave_signals_to_the_host() {
    let blocked_here = || {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("SigBlk:"));
        line.unwrap().to_owned()
    };
    let before = blocked_here();
    let pool = Pool::new(1).unwrap();
    let (send, names) = mpsc::channel();
    pool.schedule(move || {
        let name = thread_name();
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        send.send((name, status)).unwrap();
    });
    let (name, status) = names.recv().unwrap();
    assert_eq!(name, "rollout-0");
    let blocked = status
        .lines()
        .find_map(|line| line.strip_prefix("SigBlk:"))
        .map(|mask| u64::from_str_radix(mask.trim(), 16).unwrap())
        .unwrap();
    let bit = |signal: u32| blocked >> (signal - 1) & 1;
    let (sigint, sigsegv) = (2, 11);
    assert_eq!((bit(sigint), bit(sigsegv)), (1, 0));
    // And the host's own mask is as it was.
    assert_eq!(blocked_here(), before);
}

/// A job of the toy that takes a while: nbatch rollouts of 50 steps.
struct Work {
    models: [toy::Model; 1],
    slots: Vec<Slot<Toy>>,
    nbatch: usize,
    start: Vec<f64>,
}

impl Work {
    fn new(nbatch: usize, ndata: usize, seed: u64, model: toy::Model) -> Self {
        Self {
            slots: (0..ndata)
                .map(|_| Slot::new(Toy::new(&model), &model))
                .collect(),
            start: rollout_tests::Numbers::new(seed).units(nbatch * (1 + 2 * model.nq)),
            models: [model],
            nbatch,
        }
    }

    fn run(&mut self, run: impl FnOnce(&mut Request<'_>)) -> Vec<u64> {
        let nstate = 1 + 2 * self.models[0].nq;
        let mut state = vec![0.0; self.nbatch * 50 * nstate];
        let arrays = Arrays {
            nbatch: self.nbatch,
            nstep: 50,
            initial_state: Input::rows(&self.start, nstate),
            state: Some(Output::new(&mut state)),
            ..Arrays::default()
        };
        let mut request = Request::new(
            Simulation::of(&self.models, &mut self.slots).unwrap(),
            arrays,
        )
        .unwrap();
        run(&mut request);
        drop(request);
        bits(&state)
    }

    fn serially(&mut self) -> Vec<u64> {
        self.run(|request| {
            request.run();
        })
    }

    fn on(&mut self, pool: &Pool) -> Vec<u64> {
        self.run(|request| {
            pool.run(request).unwrap();
        })
    }
}

#[test]
fn r83_two_callers_with_different_models_share_one_pool() {
    let pool = Pool::new(2).unwrap();
    let small = toy::Model {
        nq: 1,
        nsensordata: 0,
        work: 100,
        ..toy::Model::default()
    };
    let large = toy::Model {
        nq: 6,
        work: 300,
        ..toy::Model::default()
    };
    thread::scope(|scope| {
        for (seed, model) in [(1, small), (2, large)] {
            let pool = &pool;
            scope.spawn(move || {
                let mut work = Work::new(40, 3, seed, model);
                let expected = work.serially();
                for _ in 0..50 {
                    assert_eq!(work.on(pool), expected);
                }
            });
        }
    });
}

#[test]
fn r87_two_pools_are_used_at_once() {
    thread::scope(|scope| {
        for (seed, nthread) in [(1, 3), (2, 4)] {
            scope.spawn(move || {
                let pool = Pool::new(nthread).unwrap();
                let model = toy::Model {
                    work: 100,
                    ..toy::Model::default()
                };
                let mut work = Work::new(30, nthread + 1, seed, model);
                let expected = work.serially();
                for _ in 0..50 {
                    assert_eq!(work.on(&pool), expected);
                }
            });
        }
    });
}

#[test]
fn requests_and_tasks_share_one_pool() {
    let pool = Pool::new(2).unwrap();
    let model = toy::Model {
        work: 200,
        ..toy::Model::default()
    };
    let mut work = Work::new(30, 3, 1, model);
    let expected = work.serially();
    for round in 1..=20 {
        for _ in 0..20 {
            pool.schedule(|| {});
        }
        assert_eq!(work.on(&pool), expected);
        pool.wait_count(round * 20).unwrap();
    }
}

#[test]
fn a_request_runs_inside_a_task_of_the_same_pool() {
    let pool = Arc::new(Pool::new(2).unwrap());
    let (send, results) = mpsc::channel();
    for seed in 0..4 {
        let (inner, send) = (Arc::clone(&pool), send.clone());
        pool.schedule(move || {
            let model = toy::Model {
                work: 200,
                ..toy::Model::default()
            };
            let mut work = Work::new(20, 3, seed, model);
            let expected = work.serially();
            send.send(work.on(&inner) == expected).unwrap();
        });
    }
    pool.wait_count(4).unwrap();
    assert_eq!(results.try_iter().collect::<Vec<_>>(), [true; 4]);
}

#[test]
fn workers_take_part() {
    // No step ends before three threads are in one.
    let pool = Pool::new(2).unwrap();
    let gate = [Gate::new(3)];
    let mut slots = [(); 3].map(|()| Slot::new(Waiting, &gate[0]));
    let simulation = Simulation::of(&gate, &mut slots).unwrap();
    let mut request = Request::new(simulation, one_step_each(3)).unwrap();
    assert_eq!(pool.run(&mut request).unwrap().completed, 3);
}

#[test]
fn no_two_threads_share_a_data() {
    // More workers than data; the toy fails when two threads step it at once.
    let pool = Pool::new(4).unwrap();
    for ndata in [1, 2] {
        let model = toy::Model {
            work: 200_000,
            ..toy::Model::default()
        };
        let mut work = Work::new(20, ndata, 1, model);
        work.run(|request| assert_eq!(pool.run(request).unwrap().completed, 20));
    }
}

#[test]
fn a_data_in_use_by_a_request_in_flight_is_busy_for_every_pool() {
    let gate = Gate::new(usize::MAX);
    let model = Fixed::<Waiting>::new(&gate);
    let mut slots = [(); 2].map(|()| Slot::new(Waiting, &gate));
    let [shared, other] = slots.each_mut().map(Data::of);
    let request = |data: &[Data], nbatch| {
        // SAFETY: the descriptions are of this model and these slots, which live
        // through the test; both requests run on pools, which keep them apart.
        let simulation = unsafe {
            Simulation::new(
                const { &Engine::of::<Waiting>() },
                vec![Model::of(&model)],
                data.to_vec(),
            )
        };
        Request::new(simulation, one_step_each(nbatch)).unwrap()
    };
    let mut first = request(&[shared], 1);
    thread::scope(|scope| {
        let long = scope.spawn(move || {
            let pool = Pool::new(1).unwrap();
            pool.run(&mut first).unwrap()
        });
        eventually("the long request's step", || {
            gate.arrived.load(Ordering::Acquire) == 1
        });
        let pool = Pool::new(1).unwrap();
        let busy = Err(RunError::Busy { slot: 1 });
        assert_eq!(pool.run(&mut request(&[other, shared], 2)), busy);
        // What was refused has taken nothing: the other data is free.
        gate.open_at.store(0, Ordering::Release);
        assert_eq!(pool.run(&mut request(&[other], 1)).unwrap().completed, 1);
        assert_eq!(long.join().unwrap().completed, 1);
        // And the first one is again.
        assert_eq!(pool.run(&mut request(&[shared], 1)).unwrap().completed, 1);
    });
}

#[test]
fn tasks_that_schedule_tasks_do_so_while_the_pool_ends() {
    let ran = Arc::new(AtomicUsize::new(0));
    let pool = Arc::new(Pool::new(2).unwrap());
    for _ in 0..10 {
        let (inner, ran) = (Arc::clone(&pool), Arc::clone(&ran));
        pool.schedule(move || {
            thread::sleep(Duration::from_millis(2));
            let count = Arc::clone(&ran);
            inner.schedule(move || {
                count.fetch_add(1, Ordering::Relaxed);
            });
            ran.fetch_add(1, Ordering::Relaxed);
        });
    }
    pool.end();
    assert_eq!(ran.load(Ordering::Relaxed), 20);
}

/// The CPU time that each thread of the pool has used, in nanoseconds.
fn cpu_times() -> Vec<u64> {
    let mut times = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().path();
        // (A thread of another test may end meanwhile.)
        let read = |file: &str| std::fs::read_to_string(task.join(file)).unwrap_or_default();
        if read("comm").starts_with("rollout-") {
            let time = read("schedstat").split(' ').next().unwrap_or("").to_owned();
            times.extend(time.parse::<u64>());
        }
    }
    times
}

/// In a process of its own, where no other test has threads of the same name.
#[test]
fn an_idle_pool_uses_no_cpu() {
    const CHILD: &str = "ROLLOUT_TEST_IDLE";
    if std::env::var_os(CHILD).is_none() {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "an_idle_pool_uses_no_cpu"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success(), "{said}");
        return;
    }
    let pool = Pool::new(8).unwrap();
    for _ in 0..100 {
        pool.schedule(|| {});
    }
    pool.wait_count(100).unwrap();
    // A thread names itself when it begins.
    eventually("all have begun", || cpu_times().len() == 8);
    // Those that look out for more work do so for a while.
    eventually("all sleep", || {
        let before = cpu_times();
        thread::sleep(Duration::from_millis(50));
        before == cpu_times()
    });
    let before = cpu_times();
    thread::sleep(Duration::from_millis(300));
    assert_eq!(cpu_times(), before);
}
