package redistest

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestServer(t *testing.T) {
	t.Parallel()
	s := Start(t)
	c := s.Client()
	if err := c.Set(t.Context(), "a", "b", 0).Err(); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	if err := c.Get(t.Context(), "a").Err(); err == nil {
		t.Error("a killed server answers")
	}
	s.Restart()
	if n, err := c.DBSize(t.Context()).Result(); err != nil || n != 0 {
		t.Errorf("after a restart %d keys, %v; want none", n, err)
	}
}

func TestCluster(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	for _, s := range Cluster(t) {
		if shards, err := s.Client().ClusterShards(t.Context()).Result(); err != nil || len(shards) != 3 {
			t.Errorf("%v, %v; want three", shards, err)
		}
	}
}
