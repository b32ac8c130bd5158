package config

import "github.com/sluice-gateway/sluice/internal/certificates"

// Redis says where gateways meet. In the file it is a mapping, or the URL alone.
type Redis struct {
	// URL is where Redis is: redis://user:password@host:6379/0, or rediss:// for TLS. Several
	// hosts, as in redis://a:6379,b:6379,c:6379, name a Redis Cluster, which has no database
	// number, or the sentinels if sentinel is set. User and password are those of the master, or of
	// all servers of the cluster.
	URL string `yaml:"url" form:"redis"`
	// Sentinel says which master the hosts of url guard, which are sentinels then. Default: absent,
	// they are no sentinels.
	Sentinel *Sentinel `yaml:"sentinel"`
	// Cert is the path of the certificate that the gateway shows to Redis and to the sentinels, in
	// PEM. Sluice reads the files cert, key and ca again when they change. A relative path counts
	// from the folder of the file. Default: empty, it shows none.
	Cert string `yaml:"cert"`
	// Key is the path of the key of cert, in PEM.
	Key string `yaml:"key"`
	// CA is the path of the certificates of the authorities that sign the certificates of Redis and
	// of the sentinels, in PEM. Default: empty, those that the system trusts.
	CA string `yaml:"ca"`
	// ServerName is the name for which the certificates of Redis and of the sentinels are checked.
	// Default: empty, the host of url, or the address by which a sentinel or a server of a cluster
	// names a server.
	ServerName string `yaml:"server_name"`
}

// Sentinel names a master that sentinels guard.
type Sentinel struct {
	// Master is the name of the master in the configuration of the sentinels.
	Master string `yaml:"master" required:"true"`
	// Username is the user of the sentinels. Default: empty, their default user.
	Username string `yaml:"username"`
	// Password is the password of the sentinels. Default: empty, they need none.
	Password string `yaml:"password"`
}

// Files returns the paths of the files.
func (r *Redis) Files() certificates.Files {
	return certificates.Files{Cert: r.Cert, Key: r.Key, CA: r.CA}
}
