import java.io.FileOutputStream;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/** HDFS and YARN with two node managers in one JVM. Argument: a directory, which gets the clients' settings last. */
public class MiniCluster {
    private static final List<String> FOR_CLIENTS = List.of(
        "yarn.resourcemanager.hostname", "yarn.resourcemanager.address", "yarn.resourcemanager.scheduler.address",
        "yarn.resourcemanager.webapp.address", "yarn.resourcemanager.admin.address",
        "yarn.resourcemanager.resource-tracker.address");

    public static void main(String[] arguments) throws Exception {
        Path directory = Path.of(arguments[0]).toAbsolutePath();
        Configuration base = new Configuration();
        base.set("hadoop.tmp.dir", directory.resolve("tmp").toString());
        MiniDFSCluster files = new MiniDFSCluster.Builder(base, directory.resolve("dfs").toFile())
            .numDataNodes(1).format(true).build();
        files.waitActive();

        YarnConfiguration settings = new YarnConfiguration(base);
        FileSystem.setDefaultUri(settings, FileSystem.getDefaultUri(base));
        settings.set("yarn.minicluster.yarn.nodemanager.resource.memory-mb", "3072");
        settings.set("yarn.nodemanager.resource.cpu-vcores", "4");
        settings.set("yarn.scheduler.minimum-allocation-mb", "128");
        settings.set("yarn.nodemanager.vmem-check-enabled", "false");
        // A test machine's disk may be nearly full.
        settings.set("yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", "99.9");
        settings.set("yarn.resourcemanager.am.max-attempts", "1");
        settings.set("yarn.scheduler.capacity.maximum-am-resource-percent", "0.5");
        settings.set("yarn.scheduler.capacity.node-locality-delay", "-1");
        MiniYARNCluster cluster = new MiniYARNCluster("y", 2, 1, 1);
        cluster.init(settings);
        cluster.start();
        if (!cluster.waitForNodeManagersToConnect(60_000)) {
            throw new IllegalStateException("no node managers");
        }

        Path clients = Files.createDirectories(directory.resolve("conf"));
        Configuration site = new Configuration(false);
        for (String key : FOR_CLIENTS) {
            if (cluster.getConfig().get(key) != null) {
                site.set(key, cluster.getConfig().get(key));
            }
        }
        write(site, clients.resolve("yarn-site.xml"));
        Configuration core = new Configuration(false);
        core.set("fs.defaultFS", FileSystem.getDefaultUri(base).toString());
        write(core, clients.resolve("core-site.xml"));
        // Whoever waits for the file finds it whole.
        Path hidden = directory.resolve(".ready");
        Files.writeString(hidden, FileSystem.getDefaultUri(base).toString());
        Files.move(hidden, directory.resolve("ready"), StandardCopyOption.ATOMIC_MOVE);
        Thread.currentThread().join();
    }

    private static void write(Configuration settings, Path path) throws Exception {
        try (OutputStream out = new FileOutputStream(path.toFile())) {
            settings.writeXml(out);
        }
    }
}
