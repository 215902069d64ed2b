import time
def test_probe(project, finished):
    t=time.time()
    p = project()
    s = p.type("run")
    print(s, time.time()-t)
    t=time.time()
    s = p.type("run"); print(s, time.time()-t)
    t=time.time()
    for r in ("NoLoss","NoData","Unstorable"):
        p = project(name=r, recipe=r)
        t=time.time()
        s = p.type("run"); print(r, s, time.time()-t)
        print(p.type("status"))
        print(p.type("status","--json"))
    (finished.folder/"w.safetensors").write_bytes((finished.run().stage("small").weights).read_bytes())
    p = project(name="wide", recipe="Wide", experiments__exp__init_from=str(finished.folder/"w.safetensors"))
    s = p.type("run"); print(r, s, time.time()-t)
    p.change(recipe="nowhere:Thing", experiments__exp__init_from=None)
    s = p.type("run"); print(r, s, time.time()-t)
    print(finished.type("logs", "exp"))
    assert 0
