import time, os, subprocess, pty
from tests.cli.person import *
def test_probe(project, finished, tmp_path):
    p = project("a", cluster__python="/no/such/python")
    print("NO PYTHON", p.type("run"), p.type("status"))
    p = project("a2", cluster__python="/bin/false")
    t=time.time()
    print("FALSE", p.type("run"), p.type("status"), time.time()-t)
    p = project("b")
    p.runs.mkdir()
    subprocess.run(["mount","-t","tmpfs","-o","size=1m","tmpfs",str(p.runs)],check=True)
    try:
        with suppress(OSError):
            (p.runs/"filler").write_bytes(b"x"*(1<<20))
        print("FULL", p.type("run"))
        print(list(p.runs.rglob("*")))
        (p.runs/"filler").unlink()
        print("FULL2", p.type("run"))
    finally:
        subprocess.run(["umount",str(p.runs)],check=True)
    p = project("c")
    p.runs.write_text("hi")
    print("FILE", p.type("run"), p.type("status"))
    p = project("d")
    a, b = p.start("run"), p.start("run")
    print("TWO", finish(a), finish(b), p.type("status"))
    p = project("e")
    print(p.type("run", "--preempt-every", "banana"))
    print(p.type("run", "--stages"))
    print(p.type("runn"))
    print(p.type())
    for env in ({}, {"NO_COLOR":"1"}):
        m, s = pty.openpty()
        pr = subprocess.Popen([sys.executable,"-m","tasuki","run","nowhere.yaml"],cwd=p.folder,env=p.environment|env,stdin=s,stdout=s,stderr=s)
        os.close(s); pr.wait(); print("PTY", env, repr(os.read(m, 5000)))
        m, s = pty.openpty()
        pr = subprocess.Popen([sys.executable,"-m","tasuki","status"],cwd=finished.folder,env=p.environment|env|{"COLUMNS":"40"},stdin=s,stdout=s,stderr=s)
        os.close(s); pr.wait(); print("PTY", env, repr(os.read(m, 5000)))
    print(finished.type("status", COLUMNS="40"))
    print(finished.type("plan", COLUMNS="40"))
    print(finished.type("plan", "--no-measure","--new", COLUMNS="40"))
    print(finished.type("run", COLUMNS="40"))
    assert 0
