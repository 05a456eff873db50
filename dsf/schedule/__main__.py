"""`python -m dsf.schedule`: beat without the command line."""

from dsf.process.launch import launch

if __name__ == "__main__":
    launch("beat", "dsf.schedule.main:run")
