"""unittests.py MODULE...: runs unittest tests, one line for each: begin, ok, not ok or skip, then its name.

A test that takes two minutes ends the program with the stacks of its threads; its line stays at `begin`.
"""
import faulthandler
import os
import sys
import unittest

OUT = os.fdopen(os.dup(1), "w", buffering=1)
# The tests must stay quiet on the channel of the results, and their children too.
os.dup2(2, 1)
LIMIT = 120


class Result(unittest.TestResult):
    def startTest(self, test):
        super().startTest(test)
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        self.outcome = "ok"
        print("begin", test.id(), file=OUT)

    def stopTest(self, test):
        super().stopTest(test)
        faulthandler.cancel_dump_traceback_later()
        print(self.outcome, test.id(), file=OUT)

    def worse(self, what, test, error):
        self.outcome = what
        print(f"{what} {test.id()}: {error}", file=sys.stderr, flush=True)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.outcome = "skip"

    def addError(self, test, error):
        super().addError(test, error)
        self.worse("not ok", test, self.errors[-1][1])

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.worse("not ok", test, self.failures[-1][1])

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.worse("not ok", test, self._exc_info_to_string(error, test))


if __name__ == "__main__":
    try:
        from test import support

        support.use_resources = ["network", "cpu"]
    except ImportError:
        pass
    tests = unittest.defaultTestLoader.loadTestsFromNames(sys.argv[1:])
    tests.run(Result())
    OUT.flush()
    # Threads that a failed test left behind must not hold up the next module.
    os._exit(0)
