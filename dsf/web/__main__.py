"""`python -m dsf.web`: the page without the command line."""

from dsf.process.launch import launch

if __name__ == "__main__":
    launch("web", "dsf.web.main:run")
